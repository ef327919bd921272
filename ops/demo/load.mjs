// A bounded open-loop load on loopback, with one spike of a given length at a given moment.
// Usage: node load.mjs '{"urls": [...], "rate": 30, "seconds": 60, "spikes": [{"url": "...", "after": 21.3, "seconds": 3}]}'
import http from "node:http";

const plan = JSON.parse(process.argv[2]);
const agent = new http.Agent({ keepAlive: true, maxSockets: 8 });
const outstanding = new Map();
let sent = 0, answered = 0, failed = 0, skipped = 0;

function get(url, limit, done) {
  const open = outstanding.get(url) || 0;
  if (open >= limit) { skipped++; return; } // Bounded: a slow target is not flooded.
  outstanding.set(url, open + 1);
  sent++;
  const finish = (ok) => {
    if (ok) answered++; else failed++;
    outstanding.set(url, outstanding.get(url) - 1);
    if (done) done();
  };
  const request = http.get(url, { agent, timeout: 10000 }, (response) => {
    response.resume();
    response.on("end", () => finish(true));
  });
  request.on("timeout", () => request.destroy(new Error("timeout")));
  request.on("error", () => finish(false));
}

for (const url of plan.urls) {
  // Random gaps with the asked mean: a regular load beats against a regular sampler.
  const next = () => {
    get(url, 4);
    setTimeout(next, -Math.log(1 - Math.random()) * 1000 / plan.rate);
  };
  setTimeout(next, Math.random() * 1000 / plan.rate);
}
for (const spike of plan.spikes || []) {
  setTimeout(() => {
    const end = Date.now() + spike.seconds * 1000;
    console.log(JSON.stringify({ spike: spike.url, at: Date.now() }));
    const again = () => { if (Date.now() < end) get(spike.url, 1, again); };
    again();
  }, spike.after * 1000);
}
setTimeout(() => {
  console.log(JSON.stringify({ sent, answered, failed, skipped }));
  process.exit(0);
}, plan.seconds * 1000);
