// Long: a table of all options of llama-server and llama-cli.
#include "app/llama_options.h"

#include <algorithm>

namespace facet {
namespace {

using Kind = LlamaOption::Kind;
using Value = LlamaOption::Value;
constexpr auto kAs = Kind::kAs;
constexpr auto kNothing = Kind::kNothing;
constexpr auto kError = Kind::kError;
constexpr auto kNone = Value::kNone;
constexpr auto kOne = Value::kOne;
constexpr auto kSwitch = Value::kSwitch;

constexpr std::string_view kAlways = "it is always so here";
constexpr std::string_view kNoAdapters = "there are no adapters here: merge them into the model file";
constexpr std::string_view kModelSays = "the model file says it, and it stays";
constexpr std::string_view kEmbeddings = "embeddings and reranking are no capability of a Gemma 4 text model";
constexpr std::string_view kPlacement = "taskset(1), nice(1) and numactl(8) say it";
constexpr std::string_view kLog = "there is one log, a line a request, on stderr";
constexpr std::string_view kPerRequest = "requests say it (docs/server.md)";
constexpr std::string_view kDraftLength = "how long drafts are is decided by what they bring; --draft-max bounds it";
constexpr std::string_view kDraftPlace = "a drafter runs where the model does, with its threads";
constexpr std::string_view kOtherModel = "name a model: -m FILE or -hf USER/REPO";
constexpr std::string_view kAgent = "the server runs no tools and reaches no other server: its clients do";

constexpr LlamaOption kOptions[] = {
    // --- the model and its drafters
    {"-hf -hfr", kAs, kOne, "--hf-repo"},
    {"-hff", kAs, kOne, "--hf-file"},
    {"-mu --model-url", kError, kOne, "download the file and give -m FILE, or -hf USER/REPO"},
    {"-dr --docker-repo", kError, kOne, "use -m FILE or -hf USER/REPO"},
    {"-hft --hf-token", kError, kOne, "set HF_TOKEN: others see the command line"},
    {"-md --model-draft --spec-draft-model --mtp --draft-method", kAs, kOne, "--draft"},
    {"-hfd -hfrd --hf-repo-draft --spec-draft-hf", kAs, kOne, "--draft"},
    {"--spec-type", kAs, kOne, "--draft"},
    {"--spec-draft-n-max --draft-n", kAs, kOne, "--draft-max"},
    {"--spec-draft-n-min --draft-n-min", kAs, kOne, "--draft-min"},
    {"--spec-default", kNothing, kNone, "--draft auto is the default"},
    {"-lcs --lookup-cache-static -lcd --lookup-cache-dynamic", kError, kOne,
     "use --draft suffix, which learns from the conversation"},
    {"--spec-draft-p-split --draft-p-split --spec-draft-p-min --draft-p-min", kNothing, kOne, kDraftLength},
    {"--spec-draft-sampling", kNothing, kOne, "drafts change no text"},
    {"--spec-draft-backend-sampling --no-spec-draft-backend-sampling", kNothing, kNone, kDraftPlace},
    {"--spec-draft-device -devd --device-draft --spec-draft-ngl -ngld --gpu-layers-draft --n-gpu-layers-draft",
     kNothing, kOne, kDraftPlace},
    {"--spec-draft-threads -td --threads-draft --spec-draft-threads-batch -tbd --threads-batch-draft", kNothing, kOne,
     kDraftPlace},
    {"--spec-draft-cpu-mask -Cd --cpu-mask-draft --spec-draft-cpu-range -Crd --cpu-range-draft --spec-draft-cpu-strict "
     "--cpu-strict-draft --spec-draft-prio --prio-draft --spec-draft-poll --poll-draft --spec-draft-cpu-mask-batch "
     "-Cbd --cpu-mask-batch-draft --spec-draft-cpu-range-batch -Crbd --cpu-range-batch-draft "
     "--spec-draft-cpu-strict-batch --cpu-strict-batch-draft --spec-draft-prio-batch --prio-batch-draft "
     "--spec-draft-poll-batch --poll-batch-draft",
     kNothing, kOne, kDraftPlace},
    {"--spec-draft-override-tensor -otd --override-tensor-draft --spec-draft-n-cpu-moe --spec-draft-ncmoe -ncmoed "
     "--n-cpu-moe-draft",
     kNothing, kOne, kDraftPlace},
    {"--spec-draft-cpu-moe -cmoed --cpu-moe-draft", kNothing, kNone, kDraftPlace},
    {"--spec-draft-type-k -ctkd --cache-type-k-draft --spec-draft-type-v -ctvd --cache-type-v-draft -cd "
     "--ctx-size-draft --spec-draft-ctx-size",
     kNothing, kOne, "a drafter's rows are as its file and the model's options want them"},
    {"--spec-ngram-mod-n-min --spec-ngram-mod-n-max --spec-ngram-mod-n-match --spec-ngram-simple-size-n "
     "--spec-ngram-simple-size-m --spec-ngram-simple-min-hits --spec-ngram-map-k-size-n --spec-ngram-map-k-size-m "
     "--spec-ngram-map-k-min-hits --spec-ngram-map-k4v-size-n --spec-ngram-map-k4v-size-m "
     "--spec-ngram-map-k4v-min-hits --spec-ngram-size-n --spec-ngram-size-m --spec-ngram-min-hits",
     kNothing, kOne, kDraftLength},
    {"--spec-synth-len --spec-synth-rates", kError, kOne, "use facet bench-spec"},
    {"--embd-gemma-default --fim-qwen-1.5b-default --fim-qwen-3b-default --fim-qwen-7b-default --fim-qwen-7b-spec "
     "--fim-qwen-14b-spec --fim-qwen-30b-default --gpt-oss-20b-default --gpt-oss-120b-default "
     "--vision-gemma-4b-default --vision-gemma-12b-default",
     kError, kNone, kOtherModel},
    {"--lora --lora-scaled --control-vector --control-vector-scaled", kError, kOne, kNoAdapters},
    {"--control-vector-layer-range", kError, Value::kTwo, kNoAdapters},
    {"--lora-init-without-apply", kError, kNone, kNoAdapters},
    {"--override-kv", kError, kOne, kModelSays},
    {"--rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx --yarn-ext-factor "
     "--yarn-attn-factor --yarn-beta-slow --yarn-beta-fast --grp-attn-n -gan --grp-attn-w -gaw",
     kError, kOne, kModelSays},
    {"--check-tensors", kNothing, kNone, "facet doctor -m FILE checks a file"},
    {"-cl --cache-list", kError, kNone, "the files lie in FACET_CACHE, else ~/.cache/facet/hub"},
    // --- where and how it is computed
    {"-tb --threads-batch", kNothing, kOne, "-t is for prompts and answers"},
    {"-C --cpu-mask -Cr --cpu-range --cpu-strict --prio -Cb --cpu-mask-batch -Crb --cpu-range-batch --cpu-strict-batch "
     "--prio-batch --numa",
     kNothing, kOne, kPlacement},
    {"--poll --poll-batch", kNothing, kOne, "how long threads wait is decided by what they wait for"},
    {"-b --batch-size", kNothing, kOne, "--chunk says how many tokens of a prompt a step computes"},
    {"-ub --ubatch-size", kAs, kOne, "--chunk"},
    {"--keep", kNothing, kOne, "a full context ends the answer: nothing is shifted out"},
    {"--context-shift", kError, kNone, "a full context ends the answer: give a larger -c"},
    {"--no-context-shift", kNothing, kNone, kAlways},
    {"--swa-full", kNothing, kNone, "--snapshots keep what sliding layers need to go on"},
    {"-fa --flash-attn", kNothing, kSwitch, "attention is always computed in blocks"},
    {"--no-flash-attn -nfa", kNothing, kNone, "attention is always computed in blocks"},
    {"--perf --no-perf", kNothing, kNone, "timings are always there"},
    {"-e --escape --no-escape", kNothing, kNone, "texts are taken as they are"},
    {"-kvo --kv-offload", kNothing, kNone, kAlways},
    {"-nkvo --no-kv-offload", kError, kNone, "rows lie where the model runs: --backend cpu, or a smaller -c or --kv"},
    {"--repack -nr --no-repack --no-host --op-offload --no-op-offload", kNothing, kNone,
     "the backend lays weights out as it needs them"},
    {"-ctk --cache-type-k", kAs, kOne, "--kv-k"},
    {"-ctv --cache-type-v", kAs, kOne, "--kv-v"},
    {"-dt --defrag-thold", kNothing, kOne, "pages need no defragmentation"},
    {"--rpc", kError, kOne, "one machine computes: --gpus divides the model among its GPUs"},
    {"--mmap --no-mmap --mlock --direct-io -dio --no-direct-io -ndio", kNothing, kNone,
     "weights are mapped, and read into memory where the backend wants them"},
    {"-lm --load-mode -lzm --lazy-mode", kNothing, kOne,
     "weights are mapped, and read into memory where the backend wants them"},
    {"-dev --device", kAs, kOne, "--gpu"},
    {"--list-devices", kError, kNone, "use facet doctor"},
    {"-ncmoe --n-cpu-moe", kAs, kOne, "--experts-on-cpu"},
    {"-cmoe --cpu-moe", kAs, kNone, "--experts-on-cpu"},
    {"-ot --override-tensor", kAs, kOne, "--experts-on-cpu"},
    {"--moe-cache-mib", kNothing, kOne, "experts stay where the plan puts them: --experts-on-cpu, facet plan"},
    {"-ncffn --n-cpu-ffn", kAs, kOne, "--ffn-on-cpu"},
    {"-ngl --gpu-layers --n-gpu-layers", kAs, kOne, "--backend"},
    {"-sm --split-mode", kError, kOne, "use --gpus N, and --split 3,1 for whole layers", "none"},
    {"-ts --tensor-split", kError, kOne, "use --gpus 2 --split 3,1"},
    {"-mg --main-gpu", kAs, kOne, "--gpu"},
    {"-fit --fit", kNothing, kSwitch, "-c 0 takes the context that fits; facet plan shows it"},
    {"-fitt --fit-target -fitc --fit-ctx", kNothing, kOne, "--memory says how much may be used"},
    {"--warmup --no-warmup", kNothing, kNone, "the first request finds everything ready"},
    {"-bs --backend-sampling", kNothing, kNone, "the backend decides where tokens are drawn"},
    // --- sampling
    {"--predict", kAs, kOne, "--n-predict"},
    {"--seed -s", kAs, kOne, "--seed"},
    {"--temperature", kAs, kOne, "--temp"},
    {"--samplers --sampler-seq --sampling-seq", kError, kOne, "their order is fixed (docs/server.md)"},
    {"--ignore-eos", kError, kNone, kPerRequest},
    {"--top-nsigma --top-n-sigma", kError, kOne, "there is --min-p", "-1 -1.0"},
    {"--typical --typical-p", kError, kOne, "there are --top-p and --min-p", "1 1.0"},
    {"--xtc-probability", kError, kOne, kPerRequest, "0 0.0"},
    {"--xtc-threshold", kNothing, kOne, kPerRequest},
    {"--dry-multiplier", kError, kOne, kPerRequest, "0 0.0"},
    {"--dry-base --dry-allowed-length --dry-penalty-last-n --dry-sequence-breaker", kNothing, kOne, kPerRequest},
    {"--adaptive-target", kError, kOne, "there are --top-p and --min-p", "-1 -1.0"},
    {"--adaptive-decay --dynatemp-exp --mirostat-lr --mirostat-ent", kNothing, kOne, "what it belongs to is not there"},
    {"--dynatemp-range", kError, kOne, "the temperature is one number: --temp", "0 0.0"},
    {"--mirostat", kError, kOne, "there are --top-p and --min-p", "0"},
    {"-l --logit-bias --grammar --grammar-file -j --json-schema -jf --json-schema-file", kError, kOne, kPerRequest},
    // --- the server
    {"-np", kAs, kOne, "--parallel"},
    {"-cb --cont-batching", kNothing, kNone, kAlways},
    {"-nocb --no-cont-batching", kNothing, kNone, "every running request has a token in every step"},
    {"--kv-unified-per-slot", kError, kOne, "-c is the context of each request"},
    {"-kvu --kv-unified -no-kvu --no-kv-unified", kNothing, kNone, "rows are pages that all sequences share"},
    {"-ctxcp --ctx-checkpoints --swa-checkpoints -cms --checkpoint-min-step", kNothing, kOne,
     "--snapshots and --snapshot-every say it"},
    {"-cram --cache-ram", kAs, kOne, "--cache-ram"},
    {"--cache-idle-slots", kNothing, kNone, kAlways},
    {"--no-cache-idle-slots", kNothing, kNone, "--cache-ram 0 keeps nothing in host memory"},
    {"--cache-prompt", kNothing, kNone, kAlways},
    {"--no-cache-prompt", kError, kNone, "requests say it: \"cache_prompt\": false"},
    {"--cache-reuse", kNothing, kOne, "what follows a change is computed anew: the text would not be the same"},
    {"-sps --slot-prompt-similarity", kNothing, kOne, "a request goes on from the longest beginning that is known"},
    {"-r --reverse-prompt", kError, kOne, "requests say it: \"stop\""},
    {"-sp --special", kError, kNone, "control tokens are not part of a text"},
    {"--spm-infill", kError, kNone, "the model has no infill"},
    {"--pooling --embd-normalize", kError, kOne, kEmbeddings},
    {"--embedding --embeddings --rerank --reranking", kError, kNone, kEmbeddings},
    {"-mm", kAs, kOne, "--mmproj"},
    {"-mmu --mmproj-url", kError, kOne, "download the file and give --mmproj FILE"},
    {"--mmproj-auto", kNothing, kNone, "--mmproj auto is the default"},
    {"--no-mmproj-auto", kAs, kNone, "--no-mmproj"},
    {"--mmproj-offload", kNothing, kNone, "encoders run where the model does"},
    {"-mmdev --mmproj-device", kNothing, kOne, "encoders run where the model does; there is --no-mmproj-offload"},
    {"--image-max-tokens", kAs, kOne, "--image-tokens"},
    {"--image-min-tokens", kNothing, kOne, "a picture fills its budget of --image-tokens"},
    {"--mtmd-batch-max-tokens", kNothing, kOne, "pictures are encoded one by one"},
    {"--image --video --audio", kError, kOne, "requests bring them (docs/media.md)"},
    {"--media-path", kError, kOne, "there is --image"},
    {"--video-fps --video-timestamp-interval", kError, kOne, "a video is 32 of its pictures, each with its time"},
    {"--video-ffmpeg-dir", kError, kOne, "ffmpeg is found by PATH"},
    {"--tags", kNothing, kOne, "nothing reads it"},
    {"--reuse-port", kError, kNone, "one process listens: --parallel, and several models, are in it"},
    {"--path", kError, kOne, "a web server gives files (docs/operations.md)"},
    {"--api-prefix", kError, kOne, "a proxy takes a prefix away (docs/operations.md)"},
    {"--ssl-key-file --ssl-cert-file", kError, kOne, "TLS is a proxy's business (docs/operations.md)"},
    {"--cors-origins", kAs, kOne, "--cors-origin"},
    {"--cors-methods --cors-headers", kNothing, kOne, "pages of --cors-origin may use what the paths need"},
    {"--cors-credentials --no-cors-credentials", kNothing, kNone, "only pages that --cors-origin names get it"},
    {"--ui --webui", kNothing, kNone, kAlways},
    {"--no-ui", kAs, kNone, "--no-webui"},
    {"--ui-config --webui-config --ui-config-file --webui-config-file", kNothing, kOne,
     "the page's settings stay in the browser"},
    {"--ui-mcp-proxy --webui-mcp-proxy -ag --agent", kError, kNone, kAgent},
    {"--no-ui-mcp-proxy --no-webui-mcp-proxy -no-ag --no-agent", kNothing, kNone, kAlways},
    {"--tools --tools-runtime --mcp-servers-config --mcp-servers-json", kError, kOne, kAgent},
    {"-to --timeout", kNothing, kOne, "--request-time, --write-time and --idle say it"},
    {"--sse-ping-interval", kAs, kOne, "--ping"},
    {"--threads-http", kNothing, kOne, "one thread does everything about HTTP"},
    {"--metrics", kNothing, kNone, kAlways},
    {"--props", kNothing, kNone, "GET /props is always there, and POST is not"},
    {"--slots-endpoint-disable", kAs, kNone, "--no-slots"},
    {"--models-autoload", kNothing, kNone, kAlways},
    {"--sleep-idle-seconds", kAs, kOne, "--sleep-idle"},
    {"--jinja", kNothing, kNone, kAlways},
    {"--no-jinja", kNothing, kNone, "the model's own template is always used"},
    {"--chat-template --chat-template-file", kError, kOne, "the model's own template is always used"},
    {"--chat-template-kwargs", kAs, kOne, "--think"},
    {"--reasoning-format", kError, kOne, "thoughts are reasoning_content of a message", "auto deepseek"},
    {"-rea --reasoning", kAs, kSwitch, "--think"},
    {"--reasoning-effort", kError, kOne, "use --think and --think-budget, or requests say reasoning_effort", "default"},
    {"--reasoning-budget", kAs, kOne, "--think-budget"},
    {"--reasoning-budget-message", kError, kOne, "the line is fixed (docs/server.md: thinking_budget)"},
    {"--reasoning-preserve", kError, kNone, "requests say it: chat_template_kwargs.preserve_thinking"},
    {"--no-reasoning-preserve", kNothing, kNone, kAlways},
    {"--skip-chat-parsing", kError, kNone, "use /v1/completions with a prompt from /apply-template"},
    {"--no-skip-chat-parsing --prefill-assistant", kNothing, kNone, kAlways},
    {"--no-prefill-assistant", kError, kNone, "requests say it: \"continue_final_message\": false"},
    {"--log-disable --log-jsonl", kError, kNone, "the log goes to stderr: 2> FILE", ""},
    {"--log-file --log-prompts-dir", kError, kOne, "the log goes to stderr, without texts: 2> FILE"},
    {"--no-log-jsonl --log-prefix --no-log-prefix --log-timestamps --no-log-timestamps --log-verbose -v --verbose",
     kNothing, kNone, kLog},
    {"--log-colors", kNothing, kSwitch, kLog},
    {"-lv --verbosity --log-verbosity", kNothing, kOne, kLog},
    {"--version", kError, kNone, "use facet --version"},
    {"--usage", kAs, kNone, "--help"},
    {"--completion-bash", kError, kNone, "facet COMMAND --help lists the options"},
    // --- llama-cli
    {"-sys --system-prompt", kAs, kOne, "--system"},
    {"-sysf --system-prompt-file -spf", kError, kOne, "use facet chat --system \"$(cat FILE)\""},
    {"-f --file -bf --binary-file", kError, kOne, "use facet run -p - < FILE"},
    {"-cnv --conversation -i --interactive -if --interactive-first", kNothing, kNone,
     "facet chat is a conversation, facet run one answer"},
    {"-no-cnv --no-conversation", kNothing, kNone, "facet run --raw takes a text without turns"},
    {"-st --single-turn", kNothing, kNone, "facet run is one answer, facet chat a conversation"},
    {"-mli --multiline-input --simple-io --display-prompt --no-display-prompt --verbose-prompt --show-timings "
     "--no-show-timings",
     kNothing, kNone, "what is shown is decided by -v and --quiet"},
    {"-co --color", kNothing, kSwitch, "colours are used where the output is a terminal"},
    {"--server-base", kError, kOne, "the page, or any client of OpenAI's API, talks to a server"},
    {"-o --output --output-file", kError, kOne, "the answer goes to stdout: > FILE"},
    {"--prompt-cache --prompt-cache-all --prompt-cache-ro", kError, kOne, "use facet serve --cache-disk FOLDER"},
    {"--in-prefix --in-suffix", kError, kOne, "the model's own template says what is around a turn"},
};

bool names(std::string_view list, std::string_view name) {
  while (!list.empty()) {
    const size_t end = std::min(list.find(' '), list.size());
    if (list.substr(0, end) == name) return true;
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return false;
}

}  // namespace

const LlamaOption* find_llama_option(std::string_view name) {
  const auto* at = std::find_if(std::begin(kOptions), std::end(kOptions),
                                [&](const LlamaOption& o) { return names(o.names, name); });
  return at == std::end(kOptions) ? nullptr : at;
}

}  // namespace facet
