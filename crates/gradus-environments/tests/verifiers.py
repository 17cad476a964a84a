"""A `verifiers` environment server for tests: prompts ask the policy for tea, and for more. It prints its port."""

import asyncio
import importlib.machinery
import sys
import types

import verifiers.v1 as vf
from openai import AsyncOpenAI
from verifiers.v1.serve.server import EnvServer
from verifiers.v1.utils.loaders import resolve_env_config


class Chat(vf.Harness[vf.HarnessConfig]):
    """Takes turns within this process."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def setup(self, runtime):
        pass

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, tool_interception_url=None):
        messages = [{"role": "user", "content": data.prompt}]
        client = AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0)
        for turn in range(data.turns):
            answer = await client.chat.completions.create(model=ctx.model, messages=messages)
            said = answer.choices[0].message
            messages.append({"role": "assistant", "content": said.content or ""})
            if answer.choices[0].finish_reason == "length":
                break
            messages.append({"role": "user", "content": f"More ({turn})."})
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


class TeaData(vf.TaskData):
    turns: int = 1


class TeaTask(vf.Task[TeaData, vf.State, vf.TaskConfig]):
    @vf.reward(weight=0.5)
    async def length(self, trace) -> float:
        return float(sum(sum(node.mask) for node in trace.nodes) % 7)


class TeaTaskset(vf.Taskset[TeaTask, vf.TasksetConfig]):
    def load(self):
        for i in range(8):
            yield TeaTask(TeaData(prompt=f"Tea {i}?", turns=2), self.config.task)


def there(name, **names):
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    module.__dict__.update(names, __all__=list(names))
    sys.modules[name] = module


there("tea", TeaTaskset=TeaTaskset)
there("tea_chat", Chat=Chat)
agent = {"harness": {"id": "tea_chat"}, "runtime": {"type": "subprocess"}}
config = resolve_env_config({"taskset": {"id": "tea"}, "agent": agent})
server = EnvServer(config, address="tcp://127.0.0.1:0")
print(server.address.rsplit(":", 1)[1], flush=True)
asyncio.run(server.run())
