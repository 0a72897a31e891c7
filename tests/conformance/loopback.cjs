// Preloaded into the conformance suite, whose servers would otherwise listen on every interface of the machine.
// Names are looked up synchronously, because the suite asks for the address right after listen().
const dns = require("node:dns");
const net = require("node:net");

const HOST = "127.0.0.1";
const listen = net.Server.prototype.listen;

net.Server.prototype.listen = function (...args) {
  if (typeof args[0] === "number" || typeof args[0] === "string" && /^\d+$/.test(args[0])) {
    const callback = args.find((arg) => typeof arg === "function");
    const backlog = args.slice(1).find((arg) => typeof arg === "number");
    const options = { port: Number(args[0]), host: HOST, ...(backlog === undefined ? {} : { backlog }) };
    return callback ? listen.call(this, options, callback) : listen.call(this, options);
  }
  if (args[0] && typeof args[0] === "object" && "port" in args[0]) {
    args[0] = { ...args[0], host: HOST };
  }
  return listen.apply(this, args);
};

const lookup = dns.lookup;
dns.lookup = function (name, options, callback) {
  const done = typeof options === "function" ? options : callback;
  const all = typeof options === "object" && options !== null && options.all;
  if (name === HOST || name === "localhost") {
    return all ? done(null, [{ address: HOST, family: 4 }]) : done(null, HOST, 4);
  }
  return lookup.call(dns, name, options, callback);
};
