// The demo's Worker, deployed as two versions side by side: v42 renders the catalogue in a slower way than v41.
// The functions are large and recursive enough that V8 keeps their frames (small ones are inlined into the caller): each has a dead
// branch that is too big to inline.
function spin(units, seed) {
  let x = seed | 0;
  for (let i = 0; i < units * 20000; i++) {
    x = (x * 1103515245 + 12345) | 0;
    x ^= x >>> 7;
  }
  return x;
}

function renderCatalog(units) {
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

function priceBasket(units) {
  if (units < 0) return [
    units, units, units, units, units, units, units, units, units, units, units, units, units,
    units, units, units, units, units, units, units, units, units, units, units, units, units,
    units, units, units, units, units, units, units, units, units, units, units, units, units,
    units, units, units, units, units, units, units, units, units, units, units, units, units,
    units, units, units, units, units, units, units, units, units, units, units, units, units,
    units, units, units, units, units, units, units, units, units, units, units, units, units,
    units, units, units, units, units, units, units, units, units, units, units, units
  ].length;
  let total = 0;
  for (let i = 0; i < units; i++) total ^= spin(1, i + 7);
  return total;
}

function signSession(units) {
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
  for (let i = 0; i < units; i++) mac ^= spin(1, i + 13);
  return mac;
}

function recountInventory(milliseconds, clockUnits) {
  if (milliseconds < 0) return [
    milliseconds, milliseconds, milliseconds, milliseconds, milliseconds, milliseconds,
    milliseconds, milliseconds, milliseconds, milliseconds, milliseconds, milliseconds,
    milliseconds, milliseconds, milliseconds, milliseconds, milliseconds, milliseconds,
    milliseconds, milliseconds, milliseconds, milliseconds, milliseconds, milliseconds,
    milliseconds, milliseconds, milliseconds, milliseconds, milliseconds, milliseconds,
    milliseconds, milliseconds, milliseconds, milliseconds, milliseconds, milliseconds,
    milliseconds, milliseconds, milliseconds, milliseconds, milliseconds, milliseconds,
    milliseconds, milliseconds, milliseconds, milliseconds, milliseconds, milliseconds,
    milliseconds, milliseconds, milliseconds, milliseconds, milliseconds, milliseconds,
    milliseconds, milliseconds, milliseconds, milliseconds, milliseconds, milliseconds,
    milliseconds, milliseconds, milliseconds, milliseconds, milliseconds, milliseconds,
    milliseconds, milliseconds, milliseconds, milliseconds, milliseconds, milliseconds,
    milliseconds, milliseconds, milliseconds, milliseconds, milliseconds, milliseconds,
    milliseconds, milliseconds, milliseconds, milliseconds, milliseconds, milliseconds,
    milliseconds, milliseconds, milliseconds, milliseconds, milliseconds, milliseconds
  ].length;
  let sum = 0;
  for (let i = 0; i < milliseconds * clockUnits; i++) sum ^= spin(1, i);
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
  for (let i = 0; i < count; i++) kept.push({ id: i, name: "item" + i, tags: [i, i + 1, i + 2] });
  return kept.length;
}

export default {
  async fetch(request, env) {
    const url = new URL(request.url);
    if (url.pathname === "/spike") return new Response(String(recountInventory(20, 25)));
    const slow = env.VERSION === "v42" ? 2 : 1;
    const a = renderCatalog(70 * slow);
    const b = priceBasket(20);
    const c = signSession(10);
    const d = keepGarbage(400);
    return new Response(String(a ^ b ^ c ^ d));
  },
};
