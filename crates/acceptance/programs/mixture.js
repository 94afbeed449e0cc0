// Functions that are made, compiled and given up again; WebAssembly, regular expressions, generators, classes, a worker.
const out = [];
function poly(o) { return o.x + (o.y || 0); }
let s = 0;
for (let i = 0; i < 200000; i++) s += poly(i % 3 == 0 ? {x: i} : i % 3 == 1 ? {x: i, y: 1} : {y: 2, x: i, z: 1});
out.push(s);
for (let k = 0; k < 200; k++) { const f = new Function('a', 'let t=0; for (let i=0;i<3000;i++) t=(t*' + (k+3) + '+a+i)%100003; return t;'); s = (s + f(k)) % 1000007; }
out.push(s);
const re = /(\d+)-([a-z]+)\s*(?:x|y)+/g; let text = ''; for (let i = 0; i < 2000; i++) text += i + '-abc' + (i % 2 ? 'xy ' : ' yyx ');
out.push([...text.matchAll(re)].length);
const bytes = new Uint8Array([0,97,115,109,1,0,0,0,1,6,1,96,1,127,1,127,3,2,1,0,7,7,1,3,102,105,98,0,0,10,30,1,28,0,32,0,65,2,72,4,127,32,0,5,32,0,65,1,107,16,0,32,0,65,2,107,16,0,106,11,11]);
try { const m = new WebAssembly.Instance(new WebAssembly.Module(bytes)); out.push(m.exports.fib(22)); } catch (e) { out.push(String(e)); }
function* g(n) { for (let i = 0; i < n; i++) yield i * i; }
let gs = 0; for (const v of g(100000)) gs = (gs + v) % 1000003; out.push(gs);
class A { constructor(n) { this.n = n; } get() { return this.n; } } class B extends A { get() { return super.get() * 2; } }
const objects = []; for (let i = 0; i < 50000; i++) objects.push(i % 2 ? new A(i) : new B(i)); out.push(objects.reduce((a, o) => a + o.get(), 0));
out.push(JSON.stringify(JSON.parse(JSON.stringify(objects.slice(0, 1000)))).length);
console.log(out.join(' '));
try { null.x; } catch (error) { console.log(error.constructor.name); }
const { Worker } = require('worker_threads');
const worker = new Worker('require("worker_threads").parentPort.postMessage([..."abc"].reverse().join(""))', { eval: true });
worker.on('message', text => console.log(text));
worker.on('exit', () => setTimeout(() => process.exit(6), 10));
