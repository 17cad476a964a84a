//! Tests the original client packages for vLLM if Python has them: those of TRL, `renderers` and `verifiers`.
//!
//! `GRADUS_PYTHON` is the interpreter; the default is `python3`.

use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::client::{Server, fixture, folder};
use crate::openai::{generated, generated_with, params};
use crate::rollouts::write_adapter;

#[path = "../../../gradus/tests/support/skip.rs"]
mod skip;

/// Runs a Python program that needs these packages, and returns the JSON value that it prints last. If a package is missing, prints a
/// message and returns `None`.
fn run(packages: &str, program: &str, arguments: &[&str]) -> Option<Value> {
    let python = std::env::var("GRADUS_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let found = Command::new(&python).args(["-c", &format!("import {packages}")]).stderr(Stdio::null()).status();
    if !found.is_ok_and(|status| status.success()) {
        skip::skipped("clients", &format!("`{python}` has not all of the packages `{packages}`"));
        return None;
    }
    let output = Command::new(&python).args(["-c", program]).args(arguments).output().expect("Python runs");
    let (stdout, wrong) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stdout}\n{wrong}");
    let last = stdout.lines().last().unwrap_or_else(|| panic!("it prints something: {wrong}"));
    Some(serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {stdout}\n{wrong}")))
}

/// Stubs for what TRL imports from vLLM besides its client. TRL needs these names to send weights between GPUs, but not to sample.
const VLLM: &str = r#"
import importlib.machinery, sys, types
def there(name, **names):
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    module.__path__ = []
    module.__dict__.update(names)
    sys.modules[name] = module
there("vllm", __version__="0.27.0", LLM=None, RequestOutput=None, SamplingParams=None)
there("vllm.sampling_params", StructuredOutputsParams=None)
there("vllm.utils")
there("vllm.utils.network_utils", get_ip=None, get_open_port=None)
there("vllm.distributed")
there("vllm.distributed.weight_transfer")
there("vllm.distributed.weight_transfer.nccl_engine", NCCLTrainerSendWeightsArgs=None, NCCLWeightTransferEngine=None)
"#;

const TRL: &str = r#"
import json
from trl.generation.vllm_client import VLLMClient
url, adapter = sys.argv[1:3]
client = VLLMClient(base_url=url)
found = {"model": client.model}
prompts = ["The tea is", "The cup"]
found["text"] = client.generate(prompts, n=2, max_tokens=12, generation_kwargs={"seed": 7})
ids = found["text"]["prompt_ids"]
found["ids"] = client.generate(ids, n=2, max_tokens=12, temperature=0.7, top_k=9, top_p=0.8, min_p=0.01, generation_kwargs={"seed": 7})
found["features"] = client.generate(ids, [None, None], n=2, max_tokens=12, generation_kwargs={"seed": 7})
found["chat"] = client.chat([[{"role": "user", "content": "Tea"}]], n=2, max_tokens=6, generation_kwargs={"seed": 7})
sequences = [p + c for p, c in zip(ids, found["text"]["completion_ids"][::2])]
found["scores"] = client.get_sequence_logprobs(sequences, [len(p) for p in ids], top_logprobs=100)
client.reset_prefix_cache()
try:
    client.init_communicator()
except RuntimeError as error:
    found["nccl"] = str(error)

from accelerate import PartialState
PartialState()
from trl.experimental.async_grpo.vllm_client import VLLMClient as Async
asynchronous = Async(url)
asynchronous.wait_for_server_ready()
found["max_model_len"], found["dtype"] = asynchronous.get_max_model_len(), asynchronous.get_dtype()
found["world_size"] = asynchronous.get_world_size()
asynchronous.pause()
asynchronous.load_lora_adapter("policy-v1", adapter)
asynchronous.resume()
client.model = "policy-v1"
found["adapted"] = client.generate(ids, n=2, max_tokens=12, generation_kwargs={"seed": 7})
asynchronous.unload_lora_adapter("policy-v1")
print(json.dumps(found))
"#;

/// Returns the first column of a matrix.
fn first(rows: &Value) -> Vec<f32> {
    rows.as_array().expect("rows").iter().map(|row| row[0].as_f64().expect("a number") as f32).collect()
}

#[test]
fn trl_samples_and_scores() {
    let folder = folder(&["gpt2"]);
    let weights = tempfile::tempdir().expect("a folder");
    let adapter = weights.path().join("policy");
    write_adapter("gpt2", &adapter, 3);
    let server = Server::of(folder.path(), std::net::IpAddr::from([127, 0, 0, 1]), |options| {
        options.weights = vec![weights.path().to_owned()];
        options.weights_token = Some("TRL-has-no-header-for-it".to_owned());
    });
    let url = format!("http://trl:TRL-has-no-header-for-it@{}", server.host());
    let adapter_path = adapter.to_string_lossy().into_owned();
    let Some(found) = run("trl, requests", &format!("{VLLM}{TRL}"), &[&url, &adapter_path]) else { return };
    assert_eq!((&found["model"], &found["max_model_len"]), (&json!("gpt2"), &json!(192)));
    assert_eq!((&found["dtype"], &found["world_size"]), (&json!("torch.float32"), &json!(1)));
    assert!(found["nccl"].as_str().is_some_and(|why| why.contains("no weight-transfer engine")), "{}", found["nccl"]);
    let narrow =
        gradus::generate::SamplingParams { temperature: 0.7, top_k: Some(9), top_p: 0.8, min_p: 0.01, ..params(12) };
    for (name, expected) in [
        ("text", generated("gpt2", "The tea is", 2, params(12), &[])),
        ("features", generated("gpt2", "The tea is", 2, params(12), &[])),
        ("ids", generated("gpt2", "The tea is", 2, narrow, &[])),
        ("adapted", generated_with("gpt2", &adapter, "The tea is", 2, params(12))),
    ] {
        let found = &found[name];
        assert_eq!(found["completion_ids"].as_array().map(Vec::len), Some(4), "{name}");
        for (i, expected) in expected.iter().enumerate() {
            assert_eq!(found["completion_ids"][i], json!(expected.completion_ids), "{name}");
            assert_eq!(first(&found["logprobs"][i]), expected.logprobs, "{name}");
            let ids: Vec<Value> =
                found["logprob_token_ids"][i].as_array().expect("ids").iter().map(|row| row[0].clone()).collect();
            assert_eq!(json!(ids), json!(expected.completion_ids), "{name}");
        }
    }
    assert_eq!(found["chat"]["completion_ids"].as_array().map(Vec::len), Some(2));
    // Scores of a completion equal its log-probabilities from sampling, except for the order of summation.
    for prompt in 0..2 {
        let (scored, sampled) =
            (first(&found["scores"]["actual_logprobs"][prompt]), first(&found["text"]["logprobs"][2 * prompt]));
        assert_eq!(scored.len(), sampled.len());
        let worst = scored.iter().zip(&sampled).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-5, "{worst}");
        let likeliest = found["scores"]["logprobs"][prompt].as_array().expect("rows");
        assert!(likeliest.iter().all(|row| row.as_array().is_some_and(|row| row.len() == 100)));
    }
}

const VERIFIERS: &str = r#"
import asyncio, json, sys
from openai import AsyncOpenAI
from renderers import create_renderer
from renderers.base import load_tokenizer
from renderers.client import OverlongPromptError, generate
from verifiers.v1.clients.train import TrainClient
from verifiers.v1.configs.client import TrainClientConfig
from verifiers.v1.dialects.chat import ChatDialect
from verifiers.v1.types import SamplingConfig
url, model = sys.argv[1:3]
async def main():
    found = {}
    messages = [{"role": "user", "content": "The tea"}]
    renderer = create_renderer(load_tokenizer(model))
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none")
    sampling = {"seed": 7, "max_tokens": 12, "temperature": 1.0}
    found["renderers"] = await generate(client=client, renderer=renderer, messages=messages, model="qwen3", sampling_params=sampling)
    try:
        await generate(client=client, renderer=renderer, messages=messages, model="qwen3", prompt_ids=[5] * 300)
    except OverlongPromptError as error:
        found["overlong"] = str(error)
    train = TrainClient(TrainClientConfig(base_url=f"{url}/v1", renderer_model_name=model))
    response = await train.get_response(ChatDialect(), {"model": "qwen3", "messages": messages}, SamplingConfig(**sampling))
    found["verifiers"] = response.model_dump(mode="json")
    print(json.dumps(found, default=str))
asyncio.run(main())
"#;

#[test]
fn renderers_and_verifiers_sample() {
    let folder = folder(&["qwen3"]);
    let server = Server::over(folder.path());
    let url = format!("http://{}", server.host());
    let Some(found) = run("verifiers.v1.clients.train, renderers", VERIFIERS, &[&url, &fixture("qwen3")]) else {
        return;
    };
    let ask = json!({
        "model": "qwen3", "messages": [{ "role": "user", "content": "The tea" }], "seed": 7, "max_tokens": 12,
        "logprobs": true, "return_token_ids": true,
    });
    let own = server.post("/v1/chat/completions", &ask).json();
    let choice = &own["choices"][0];
    let logprobs: Vec<f32> = choice["logprobs"]["content"]
        .as_array()
        .expect("tokens")
        .iter()
        .map(|token| token["logprob"].as_f64().expect("a number") as f32)
        .collect();
    let floats = |list: &Value| -> Vec<f32> {
        list.as_array().expect("a list").iter().map(|value| value.as_f64().expect("a number") as f32).collect()
    };
    let renderers = &found["renderers"];
    assert_eq!(
        (&renderers["prompt_ids"], &renderers["completion_ids"]),
        (&own["prompt_token_ids"], &choice["token_ids"])
    );
    assert_eq!(floats(&renderers["completion_logprobs"]), logprobs);
    assert_eq!(renderers["finish_reason"], choice["finish_reason"]);
    assert!(found["overlong"].as_str().is_some_and(|why| why.contains("256")), "it has read the length: {found}");
    let tokens = &found["verifiers"]["tokens"];
    assert_eq!((&tokens["prompt_ids"], &tokens["completion_ids"]), (&own["prompt_token_ids"], &choice["token_ids"]));
    assert_eq!(floats(&tokens["completion_logprobs"]), logprobs);
}
