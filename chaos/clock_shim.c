/* Another wall clock for one process, by LD_PRELOAD.
 *
 * The file named by WINDLASS_SERVER_CLOCK is mapped, three 64-bit numbers in the machine's order:
 *
 *     mode        0: the real time plus offset_ns    1: frozen at value_ns
 *     offset_ns
 *     value_ns
 *
 * Whoever holds the file sets the number first and the mode after it, so every reading is whole. The clocks that only
 * run (CLOCK_MONOTONIC and its kin) stay real: timers of the event loop go on. Without the file nothing changes.
 *
 * Valkey asks for the wall clock at most once a millisecond where it may count the processor's ticks in between, and
 * would see a jump that much late. It looks in /proc/cpuinfo whether it may, so we hide that file. (It does not look on
 * arm: there a jump can be seen up to a millisecond late.)
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND INT64_C(1000000000)

struct control {
    int64_t mode;
    int64_t offset_ns;
    int64_t value_ns;
};

static volatile struct control *control;
static int (*real_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void open_control(void) {
    real_clock_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("WINDLASS_SERVER_CLOCK");
    if (path == NULL) return;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    void *page = mmap(NULL, sizeof(struct control), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (page != MAP_FAILED) control = page;
}

/* An allocator may ask for the time before our constructor has run: the kernel answers then. */
static int ask(clockid_t clock, struct timespec *out) {
    if (real_clock_gettime != NULL) return real_clock_gettime(clock, out);
    return (int)syscall(SYS_clock_gettime, clock, out);
}

static int64_t wall_ns(void) {
    if (control != NULL && __atomic_load_n(&control->mode, __ATOMIC_ACQUIRE) == 1) {
        return __atomic_load_n(&control->value_ns, __ATOMIC_RELAXED);
    }
    struct timespec now = {0, 0};
    ask(CLOCK_REALTIME, &now);
    int64_t ns = (int64_t)now.tv_sec * SECOND + now.tv_nsec;
    if (control != NULL) ns += __atomic_load_n(&control->offset_ns, __ATOMIC_RELAXED);
    return ns;
}

int clock_gettime(clockid_t clock, struct timespec *out) {
    if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE && clock != CLOCK_TAI) return ask(clock, out);
    int64_t ns = wall_ns();
    out->tv_sec = (time_t)(ns / SECOND);
    out->tv_nsec = (long)(ns % SECOND);
    return 0;
}

int gettimeofday(struct timeval *out, void *zone) {
    (void)zone;
    int64_t ns = wall_ns();
    out->tv_sec = (time_t)(ns / SECOND);
    out->tv_usec = (suseconds_t)(ns % SECOND / 1000);
    return 0;
}

time_t time(time_t *out) {
    time_t seconds = (time_t)(wall_ns() / SECOND);
    if (out != NULL) *out = seconds;
    return seconds;
}

static FILE *open_unless_hidden(const char *path, const char *how, const char *opener) {
    if (control != NULL && strcmp(path, "/proc/cpuinfo") == 0) {
        errno = ENOENT;
        return NULL;
    }
    FILE *(*real)(const char *, const char *) = (FILE * (*)(const char *, const char *)) dlsym(RTLD_NEXT, opener);
    return real(path, how);
}

FILE *fopen(const char *path, const char *how) { return open_unless_hidden(path, how, "fopen"); }

FILE *fopen64(const char *path, const char *how) { return open_unless_hidden(path, how, "fopen64"); }
