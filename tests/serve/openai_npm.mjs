// Talks to a server with OpenAI's npm package as it is: node openai_npm.mjs BASE_URL. Prints what came as JSON.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0 });
const ask = [{ role: "user", content: "hello" }];
const weather = {
  type: "function",
  function: {
    name: "weather",
    parameters: { type: "object", properties: { city: { type: "string" } } },
  },
};
const seen = {};

const plain = await client.chat.completions.create({ model: "mead-local", messages: ask });
seen.plain = plain.choices[0].message.content;
seen.usage = plain.usage.total_tokens;
seen.route = plain.mead.route;

const pieces = [];
const stream = await client.chat.completions.create({
  model: "mead-local",
  messages: ask,
  stream: true,
  stream_options: { include_usage: true },
});
for await (const chunk of stream) {
  if (chunk.choices[0]?.delta.content) pieces.push(chunk.choices[0].delta.content);
  if (chunk.usage) seen.streamedUsage = chunk.usage.total_tokens;
}
seen.pieces = pieces;

const runner = client.chat.completions.runTools({
  model: "mead-local",
  messages: [{ role: "user", content: "What is the weather in Oslo?" }],
  stream: true,
  tools: [
    {
      type: "function",
      function: {
        ...weather.function,
        parse: JSON.parse,
        function: ({ city }) => {
          seen.city = city;
          return "rain";
        },
      },
    },
  ],
});
seen.afterTools = await runner.finalContent();

try {
  await client.chat.completions.create({ model: "nobody", messages: ask });
} catch (error) {
  seen.missing = [error instanceof OpenAI.NotFoundError, error.code, error.param];
}
try {
  await client.chat.completions.create({ model: "mead-local", messages: ask, n: 3 });
} catch (error) {
  seen.wrong = [error instanceof OpenAI.BadRequestError, error.code, error.param];
}
try {
  const broken = await client.chat.completions.create({ model: "mead-local", messages: ask, stream: true });
  for await (const chunk of broken) seen.beforeTheBreak = chunk.choices[0].delta.content;
} catch (error) {
  seen.broken = [error instanceof OpenAI.APIError, error.code];
}
seen.models = (await client.models.list()).data.map((model) => model.id);
seen.embedding = (await client.embeddings.create({ model: "mead-local", input: "one" })).data[0].embedding;

console.log(JSON.stringify(seen));
