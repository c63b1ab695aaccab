// A peer with the published Node client. NODE_PATH says where that is installed.

const fs = require('fs');
const Redis = require('ioredis');
const { Item, KeyPrefix, WorkQueue } = require('@mevitae/redis-work-queue/dist/WorkQueue.js');

const LEASE_SECONDS = 1;
const [role, url, prefix, journalPath, count] = process.argv.slice(2);

let stopped = false;
process.on('SIGTERM', () => { stopped = true; });

function write(mark, id) {
  fs.appendFileSync(journalPath, `${mark} ${id}\n`);
}

async function main() {
  const db = new Redis(url.replace(/^unix:\/\//, ''), { retryStrategy: null }); // without a server it ends
  const queue = new WorkQueue(new KeyPrefix(prefix));
  await db.ping();
  write('r', '');
  if (role === 'add') {
    for (let n = 0; n < Number(count); n++) {
      const id = `node-${n}`;
      await queue.addItem(db, new Item(`data of ${id}`, id));
      write('a', id);
    }
  }
  if (role === 'clean') {
    await queue.lightClean(db);
    write('c', '');
  }
  while (role === 'work' && !stopped) {
    const item = await queue.lease(db, LEASE_SECONDS, true, 1);
    if (item === null) continue;
    if (item.data.length === 0) {
      await queue.complete(db, item);
      write('0', item.id);
      continue;
    }
    if (item.data.toString() !== `data of ${item.id}`) write('!', item.id);
    write((await queue.complete(db, item)) ? '+' : '-', item.id);
  }
  await db.quit();
}

main();
