"""Evaluation and load: lm-eval on a task of our own, guidellm, schemathesis on docs/openapi.yaml."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from .common import HELLO, KEY, MODEL, case

ROOT = pathlib.Path(__file__).resolve().parents[3]
TURN = "<|turn>user\\n{{q}}<turn|>\\n<|turn>model\\n<|channel>thought\\n<channel|>"
TASK = """task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {docs}}}}}
test_split: test
"""
PICK = """output_type: multiple_choice
doc_to_text: "%s"
doc_to_target: "{{gold}}"
doc_to_choice: "{{choices}}"
target_delimiter: ""
metric_list: [{metric: acc}]
""" % TURN
SAY = """output_type: generate_until
doc_to_text: "%s"
doc_to_target: "%s"
generation_kwargs: {until: ["zzz"], max_gen_toks: 64, temperature: 0}
metric_list: [{metric: exact_match}]
"""


def lm_eval(api, model, path, task, *more):
    """The results of a task."""
    with tempfile.TemporaryDirectory() as d:
        docs = pathlib.Path(d, "docs.jsonl")
        docs.write_text("".join(json.dumps({"q": q, "choices": ["Hello!", "xyzzy"], "gold": 0}) + "\n" for q in ("Hello", "Good morning", "Hi")))
        pathlib.Path(d, "task.yaml").write_text(TASK.format(name="facet_task", docs=docs) + task)
        env = {**os.environ, "OPENAI_API_KEY": KEY, "HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": d, "TOKENIZERS_PARALLELISM": "false"}
        out = subprocess.run([sys.executable, "-m", "lm_eval", "--model", model, "--model_args", f"base_url={api.v1}{path},model={MODEL},num_concurrent=2,max_retries=1,tokenizer_backend={'remote' if path == '/completions' else None},auth_token={KEY}",
                              "--tasks", "facet_task", "--include_path", d, "--output_path", d, *more], env=env, capture_output=True, text=True, timeout=600)
        assert out.returncode == 0, out.stdout[-3000:] + out.stderr[-3000:]
        return json.loads(next(pathlib.Path(d).rglob("results*.json")).read_text())["results"]["facet_task"]


@case("lm-eval")
def local_completions_likelihood(api):
    got = lm_eval(api, "local-completions", "/completions", PICK)
    assert got["acc,none"] == 1, got


@case("lm-eval")
def local_completions_generate(api):
    got = lm_eval(api, "local-completions", "/completions", SAY % (TURN, HELLO))
    assert got["exact_match,none"] > 0, got


@case("lm-eval")
def local_chat_completions(api):
    got = lm_eval(api, "local-chat-completions", "/chat/completions", SAY % ("{{q}}", HELLO), "--apply_chat_template")
    assert got["exact_match,none"] > 0, got


def guidellm(api, request_format):
    with tempfile.TemporaryDirectory() as d:
        data, report = pathlib.Path(d, "prompts.jsonl"), pathlib.Path(d, "report.json")
        data.write_text("".join(json.dumps({"prompt": p, "output_tokens_count": 8}) + "\n" for p in ("Hello", "Good morning", "What is 12 + 30?") * 4))
        env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": d}
        out = subprocess.run([sys.executable, "-m", "guidellm", "run", "--backend", f"kind=openai_http,target={api.url},model={MODEL},api_key={KEY},request_format={request_format}",
                              "--profile", "kind=synchronous", "--constraint", "kind=max_requests,count=6", "--data", f"kind=json_file,path={data}", "--output", f"kind=json,path={report}",
                              "--disable-console"], env=env, capture_output=True, text=True, timeout=300)
        assert out.returncode == 0, out.stdout[-3000:] + out.stderr[-3000:]
        totals = json.loads(report.read_text())["benchmarks"][0]["metrics"]["request_totals"]
        assert totals["successful"] >= 6 and totals["errored"] == 0, totals


@case("guidellm", "guidellm", "torch")
def benchmark_chat(api):
    guidellm(api, "/v1/chat/completions")


@case("guidellm", "guidellm", "torch")
def benchmark_text(api):
    guidellm(api, "/v1/completions")


@case("guidellm", "guidellm", "torch")
def benchmark_responses(api):
    guidellm(api, "/v1/responses")


@case("schemathesis")
def openapi(api):
    # /models/load and unload are 501 of a server of one model, as documented; the check takes that for a fault.
    out = subprocess.run([sys.executable, "-m", "schemathesis.cli", "run", str(ROOT / "docs/openapi.yaml"), "--url", api.url, "--phases", "examples,coverage,fuzzing", "--max-examples",
                          os.environ.get("FACET_SCHEMATHESIS_EXAMPLES", "15"), "--exclude-path-regex", "^/models/(load|unload)$", "--mode", "positive", "--seed", "1", "--generation-database", "none", "-H", f"Authorization: Bearer {KEY}", "--checks",
                          "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"],
                         capture_output=True, text=True, timeout=900)
    assert out.returncode == 0, out.stdout[-6000:] + out.stderr[-3000:]
