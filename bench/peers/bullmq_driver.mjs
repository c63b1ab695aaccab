// BullMQ on Node: the same orders and reports as driving.py, see there.

import { closeSync, openSync, writeSync } from 'node:fs'
import { createRequire } from 'node:module'
import readline from 'node:readline'

const require = createRequire(`${process.env.BENCH_MODULES}/`)
const { Queue, Worker } = require('bullmq')

const NAP = 10
const STEP = 0.1
const AWAITS = 100
const WARM_UP = AWAITS
const BATCH = 5000
const jobs = Number(process.env.BENCH_JOBS ?? 0)
const url = new URL(process.env.BENCH_URL)
const connection = { host: url.hostname, port: Number(url.port), maxRetriesPerRequest: null }
const options = { removeOnComplete: true, removeOnFail: true }

const now = () => Number(process.hrtime.bigint()) / 1e9

function report(what) {
  const pipe = openSync(process.env.BENCH_REPORT, 'w')
  writeSync(pipe, JSON.stringify(what) + '\n')
  closeSync(pipe)
}

function moment() {
  const { user, system } = process.cpuUsage()
  return { at: now(), cpu: (user + system) / 1e6 }
}

// -- the worker

let count = 0
let hasBegun = false

function began() {
  if (!hasBegun) {
    hasBegun = true
    report({ event: 'first', ...moment() })
  }
}

let nextStep = 0

function step(last) {
  if (now() < nextStep && !last) return
  nextStep = now() + STEP
  report({ event: 'step', count, last, ...moment() })
}

function handled(number) {
  if (!jobs) {
    report({ event: 'picked', number, at: now() })
    return
  }
  began()
  count += 1
  if (count % 16 === 0 || count === jobs) step(count === jobs)
}

async function handle(job) {
  if (job.name === 'nap') {
    began()
    await new Promise((resolve) => setTimeout(resolve, NAP))
  }
  handled(job.data.n)
}

// -- the producer

class Numbers {
  constructor(most, seconds, pause) {
    this.most = most ?? Infinity
    this.until = seconds === null ? Infinity : now() + seconds
    this.pause = pause
    this.given = 0
    this.sent = []
  }

  async next() {
    if (this.pause && this.given) await new Promise((resolve) => setTimeout(resolve, this.pause * 1000))
    const at = now()
    if (this.given >= this.most || at >= this.until) return null
    if (this.pause) this.sent.push(at)
    return this.given++
  }

  batch() {
    const first = this.given
    if (now() < this.until) this.given = Math.min(first + BATCH, this.most)
    return Array.from({ length: this.given - first }, (_, i) => first + i)
  }
}

async function awaited(queue, task, numbers) {
  for (let n = await numbers.next(); n !== null; n = await numbers.next()) await queue.add(task, { n }, options)
}

async function bulk(queue, task, numbers) {
  for (let batch = numbers.batch(); batch.length; batch = numbers.batch()) {
    await queue.addBulk(batch.map((n) => ({ name: task, data: { n }, opts: options })))
  }
}

async function produce(queue, order, line) {
  const call = order.mode === 'bulk' ? bulk : awaited
  await call(queue, order.task, new Numbers(WARM_UP, null, 0))
  report({ event: 'ready' })
  await line()
  const before = moment()
  const numbers = new Numbers(order.jobs, order.seconds, order.pause)
  const atOnce = order.mode === 'concurrent' ? AWAITS : 1
  await Promise.all(Array.from({ length: atOnce }, () => call(queue, order.task, numbers)))
  const after = moment()
  report({
    event: 'done',
    jobs: numbers.given,
    seconds: after.at - before.at,
    cpu: after.cpu - before.cpu,
    sent: numbers.sent,
  })
  await line()
}

const [role, given] = process.argv.slice(2)
const orders = JSON.parse(given)
if (role === 'work') {
  new Worker('bench', handle, { connection, concurrency: orders.concurrency })
} else {
  const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]()
  const queue = new Queue('bench', { connection })
  for (const order of orders) await produce(queue, order, () => lines.next())
  await queue.close()
  process.exit(0)
}
