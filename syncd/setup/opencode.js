// Tells syncd what happens in OpenCode, and OpenCode what syncd knows. Whatever goes wrong here stays
// here: without syncd on this machine, nothing happens.
import { spawn } from "node:child_process"

const PROGRAM = []
const PLAIN = new Set([
  "session.idle",
  "session.compacted",
  "session.deleted",
  "session.error",
  "todo.updated",
  "file.edited",
])
const PATIENCE_MS = 10_000
const MOST_CHARACTERS = 20_000

/** One event to one process; what it answers, if that is wanted. */
function tell(message, wanted) {
  return new Promise((resolve) => {
    try {
      const [command, ...words] = PROGRAM
      const child = spawn(command, [...words, "hook", "opencode"], {
        stdio: ["pipe", wanted ? "pipe" : "ignore", "ignore"],
      })
      const given = setTimeout(() => child.kill(), PATIENCE_MS)
      let said = ""
      const done = () => {
        clearTimeout(given)
        resolve(read(said))
      }
      child.on("error", done)
      child.on("close", done)
      child.stdin.on("error", () => {})
      child.stdout?.on("data", (piece) => (said += piece))
      child.stdin.end(JSON.stringify(message))
      if (!wanted) {
        given.unref?.()
        child.unref()
        resolve("")
      }
    } catch {
      resolve("")
    }
  })
}

function read(said) {
  try {
    const context = JSON.parse(said).context
    return typeof context === "string" ? context : ""
  } catch {
    return ""
  }
}

export const SyncdPlugin = async ({ directory }) => {
  const contexts = new Map()
  let last = ""

  const send = (type, rest, session, wanted = false) => {
    last = session || last
    const where = last ? { session: last } : {}
    return tell({ type, directory, ...where, ...rest }, wanted)
  }

  const happened = (event) => {
    const { type, properties = {} } = event
    const info = properties.info ?? {}
    const session = properties.sessionID ?? info.sessionID
    if (type === "session.created") {
      if (!info.parentID && info.id) contexts.set(info.id, send(type, { properties }, info.id, true))
    } else if (type === "message.updated") {
      if (info.role === "assistant" && info.time?.completed) send(type, { properties }, session)
    } else if (PLAIN.has(type)) {
      send(type, { properties }, session ?? (type === "session.deleted" ? info.id : undefined))
      if (type === "session.deleted") contexts.delete(info.id)
    }
  }

  const quietly = (does) => async (...given) => {
    try {
      await does(...given)
    } catch {
      // Not OpenCode's problem.
    }
  }

  return {
    event: quietly(async ({ event }) => happened(event)),
    "chat.message": quietly(async (input, output) => {
      send("chat.message", { input, output }, input.sessionID)
    }),
    "tool.execute.before": quietly(async (input, output) => {
      if (input.tool === "bash") send("tool.execute.before", { input, output }, input.sessionID)
    }),
    "tool.execute.after": quietly(async (input, output) => {
      const text = String(output.output ?? "").slice(-MOST_CHARACTERS)
      send("tool.execute.after", { input, output: { ...output, output: text } }, input.sessionID)
    }),
    "experimental.session.compacting": quietly(async (input, output) => {
      const about = { input, output: {} }
      const context = await send("experimental.session.compacting", about, input.sessionID, true)
      if (context) output.context.push(context)
    }),
    // With every request, as a system prompt is no part of what the model remembers.
    "experimental.chat.system.transform": quietly(async (input, output) => {
      const context = await contexts.get(input.sessionID)
      if (context) output.system.push(context)
    }),
  }
}
