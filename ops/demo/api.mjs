// The demo's Node.js service: one hot function, and a path that burns CPU. Each function has a dead branch
// that is too big to inline, so that V8 keeps its frame.
import http from "node:http";

function spin(units, seed) {
  let x = seed | 0;
  for (let i = 0; i < units * 20000; i++) {
    x = (x * 1103515245 + 12345) | 0;
    x ^= x >>> 7;
  }
  return x;
}

function buildReport(units) {
  if (units < 0) return [
    units, units, units, units, units, units, units, units, units, units, units, units, units,
    units, units, units, units, units, units, units, units, units, units, units, units, units,
    units, units, units, units, units, units, units, units, units, units, units, units, units,
    units, units, units, units, units, units, units, units, units, units, units, units, units,
    units, units, units, units, units, units, units, units, units, units, units, units, units,
    units, units, units, units, units, units, units, units, units, units, units, units, units,
    units, units, units, units, units, units, units, units, units, units, units, units
  ].length;
  let rows = 0;
  for (let i = 0; i < units; i++) rows ^= spin(1, i);
  return rows;
}

function validateToken(units) {
  if (units < 0) return [
    units, units, units, units, units, units, units, units, units, units, units, units, units,
    units, units, units, units, units, units, units, units, units, units, units, units, units,
    units, units, units, units, units, units, units, units, units, units, units, units, units,
    units, units, units, units, units, units, units, units, units, units, units, units, units,
    units, units, units, units, units, units, units, units, units, units, units, units, units,
    units, units, units, units, units, units, units, units, units, units, units, units, units,
    units, units, units, units, units, units, units, units, units, units, units, units
  ].length;
  let mac = 0;
  for (let i = 0; i < units; i++) mac ^= spin(1, i + 5);
  return mac;
}

function reindexEverything(units) {
  if (units < 0) return [
    units, units, units, units, units, units, units, units, units, units, units, units, units,
    units, units, units, units, units, units, units, units, units, units, units, units, units,
    units, units, units, units, units, units, units, units, units, units, units, units, units,
    units, units, units, units, units, units, units, units, units, units, units, units, units,
    units, units, units, units, units, units, units, units, units, units, units, units, units,
    units, units, units, units, units, units, units, units, units, units, units, units, units,
    units, units, units, units, units, units, units, units, units, units, units, units
  ].length;
  let sum = 0;
  for (let i = 0; i < units; i++) sum ^= spin(1, i);
  return sum;
}

function keepGarbage(count) {
  if (count < 0) return [
    count, count, count, count, count, count, count, count, count, count, count, count, count,
    count, count, count, count, count, count, count, count, count, count, count, count, count,
    count, count, count, count, count, count, count, count, count, count, count, count, count,
    count, count, count, count, count, count, count, count, count, count, count, count, count,
    count, count, count, count, count, count, count, count, count, count, count, count, count,
    count, count, count, count, count, count, count, count, count, count, count, count, count,
    count, count, count, count, count, count, count, count, count, count, count, count
  ].length;
  const kept = [];
  for (let i = 0; i < count; i++) kept.push({ id: i, name: "row" + i, cells: [i, i + 1, i + 2] });
  return kept.length;
}

const server = http.createServer((request, response) => {
  if (request.url === "/spike") {
    response.end(String(reindexEverything(500)));
    return;
  }
  const a = buildReport(80);
  const b = validateToken(20);
  const c = keepGarbage(400);
  response.end(String(a ^ b ^ c));
});
server.listen(Number(process.env.PORT || 0), "127.0.0.1", () => {
  console.log(JSON.stringify({ port: server.address().port }));
});
process.on("SIGTERM", () => server.close(() => process.exit(0)));
