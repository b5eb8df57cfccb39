#!/usr/bin/env python3
"""Old words that the tree has given up, each with the field's word and why. One that comes back is an error with its file and line.

    tools/check_words.py           exit 1 where a word of GONE stands in src, tests, bench, docs or tools
    tools/check_words.py --count   as well, how often the words of LEFT, which are still to be renamed, stand there

A word is a whole identifier: `turns` is not found in `returns` nor in `n_turns`. Ordinary words are old only in some folders; WHERE says in which."""
import argparse
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDERS = ("src", "tests", "bench", "docs", "tools")
TEXT = (".h", ".cpp", ".cu", ".cuh", ".def", ".py", ".md", ".sh", ".txt", ".tsv", ".yaml", ".html")
NOT = re.compile(r"^(tests/data/|bench/results/|tools/train/|tools/check_words\.py$)")
CUDA = r"^src/backend/cuda/"
KERNELS = r"^src/backend/cuda/kernels/"
ATTENTION = KERNELS + "attention/"
MOE = KERNELS + r"(moe|route)/"
COLLECTIVES = r"^(src/backend/cuda/(kernels/collectives|cuda_link)\.|tests/kernels/cuda_collectives|bench/verbs/cuda_collectives)"
SHARDS = r"^(src/backend/[a-z_]+\.|src/model/|src/cache/|tests/shards/|tests/cuda_model/|tests/unit/shards_test)"

ROOMS = r"^src/(session|engine|compose)/"

# (old, new, why[, where])
GONE = [
    ("wait_for_previous", "pdl_wait", "programmatic dependent launch: griddepcontrol.wait"),
    ("let_next_start", "pdl_trigger", "programmatic dependent launch: griddepcontrol.launch_dependents"),
    ("rehearsed", "warm_icache", "the instruction cache is warmed"),
    ("kRehearse", "kWarmIcache", "as warm_icache"),
    ("may_rehearse", "may_warm_icache", "as warm_icache"),
    ("turns", "rope_cos_sin", "cosines and sines of RoPE", ATTENTION + r"(head_rows|decode|qk_norm_rope)"),
    ("find_turn", "compute_rope", "find_ is for searches"),
    ("rotate_head", "apply_rope", "RoPE"),
    ("Cut", "KvSplitPolicy", "split-KV; a shard's part is a ShardSpec", ATTENTION),
    ("cut_of", "policy_of or shard_spec_of", "as KvSplitPolicy and ShardSpec"),
    ("split_of", "split_index", "the number of a split"),
    ("Cut", "ShardSpec", "how a matrix is divided among shards", SHARDS),
    ("Ranges", "ShardRanges", "as ShardSpec", SHARDS),
    ("CutTensor", "ShardedTensor", "as ShardSpec"),
    ("cut_tensor", "shard_tensor", "as ShardSpec"),
    ("cut_ranges", "shard_ranges", "as ShardSpec"),
    ("cut_views", "shard_views", "as ShardSpec"),
    ("upload_cut", "upload_shard", "as ShardSpec"),
    ("cuts_blocks_apart", "ranges_hold_whole_blocks", "a predicate says what it is true of"),
    ("ModelCuts", "ModelShardSpecs", "as ShardSpec"),
    ("Sharded", "TensorParallel", "tensor parallelism"),
    ("Pipeline", "PipelineParallel", "pipeline parallelism", r"^(src|tests|bench)/"),
    ("CudaMove", "P2pCopy", "peer-to-peer copy"),
    ("cuda_move", "p2p_copy", "peer-to-peer copy"),
    ("pick_left", "resolve_pending_topk", "work that was deferred is pending and is resolved, as Activations says"),
    ("take_pick", "take_pending_topk", "as resolve_pending_topk"),
    ("unpicked_", "pending_topk_", "as resolve_pending_topk"),
    ("head_work", "qk_norm_rope", "norms and RoPE of q and k"),
    ("head_work_kernel", "qk_norm_rope_kernel", "as qk_norm_rope"),
    ("HeadWork", "QkNormRope", "as qk_norm_rope"),
    ("HeadsLeft", "PendingQkNormRope", "as qk_norm_rope"),
    ("HeadsBefore", "FusedQkNormRope", "as qk_norm_rope"),
    ("run_heads", "run_qk_norm_rope", "as qk_norm_rope"),
    ("take_heads", "take_qk_norm_rope", "as qk_norm_rope"),
    ("takes_heads", "fuses_qk_norm_rope", "as qk_norm_rope"),
    ("planar", "device_kv_layout, device row", "the order of a K/V row on the device", r"^(src|tests|bench|docs)/"),
    ("planar_bytes", "device_kv_bytes", "as device_kv_layout"),
    ("planar_code_bytes", "device_kv_code_bytes", "as device_kv_layout"),
    ("planar_scaled", "device_kv_has_scales", "as device_kv_layout"),
    ("planar_scale_bytes", "device_kv_scale_bytes", "as device_kv_layout"),
    ("planar_word", "device_kv_word", "as device_kv_layout"),
    ("planar_code", "device_kv_code", "as device_kv_layout"),
    ("planar_value", "device_kv_value", "as device_kv_layout"),
    ("kv_planar_from_blocks", "kv_device_from_blocks", "as device_kv_layout"),
    ("kv_blocks_from_planar", "kv_blocks_from_device", "as device_kv_layout"),
    ("Exchange", "Communicator", "NCCL's word for a GPU's view of its group", COLLECTIVES),
    ("Patience", "SpinTimeout", "a wait that spins, for a while", COLLECTIVES),
    ("patience", "timeout_ns", "as SpinTimeout", COLLECTIVES),
    ("set_patience", "set_spin_timeout", "as SpinTimeout"),
    ("goes_on", "keeps_spinning", "as SpinTimeout"),
    ("raise", "signal", "a flag is signalled and polled", COLLECTIVES),
    ("seen", "poll", "a flag is signalled and polled", COLLECTIVES),
    ("turn", "epoch", "the number of a collective", COLLECTIVES),
    ("get_far", "ld_sys", "PTX: ld.sys"),
    ("put_far", "st_sys", "PTX: st.sys"),
    ("exchange_sum", "all_reduce", "collectives have names"),
    ("exchange_sum_in_place", "all_reduce_in_place", "collectives have names"),
    ("exchange_gather", "all_gather_columns", "collectives have names"),
    ("sum_kernel", "all_reduce_kernel", "as all_reduce", COLLECTIVES),
    ("sum_in_place_kernel", "all_reduce_in_place_kernel", "as all_reduce"),
    ("CudaExchange", "CudaCollectives", "as all_reduce"),
    ("narrow", "small_model", "say of what", KERNELS + "common/"),
    ("kNarrowCols", "kSmallModelCols", "as small_model"),
    ("is_narrow", "is_small_model", "as small_model"),
    ("pinned", "hold_in_register", "pinned memory is page-locked memory of the host", KERNELS),
    ("kept", "hold_shared", "say where", KERNELS + r"common/"),
    ("quick_div", "fast_div", "CUTLASS: FastDivmod"),
    ("kQuickMost", "kFastDivMost", "as fast_div"),
    ("RouteJob", "RouterArgs", "arguments of a kernel; a job is something else"),
    ("route_job", "router_args", "as RouterArgs"),
    ("moe_one", "moe_decode", "by what it is for"),
    ("one_kernel", "moe_decode_kernel", "as moe_decode", MOE),
    ("OneArgs", "DecodeArgs", "as moe_decode", MOE),
    ("moe_small", "moe_small_batch", "by what it is for"),
    ("moe_many", "moe_large_batch", "by what it is for"),
    ("MoeMany", "MoeLargeBatch", "by what it is for"),
    ("route_many", "route_large_batch", "by what it is for"),
    ("route_batch", "route_small_batch", "by what it is for"),
    ("kMoeBatch", "kMoeSmallBatch", "as moe_small_batch"),
    ("kMoeManyTokens", "kMoeLargeBatchTokens", "as moe_large_batch"),
    ("kMoeFewMost", "kMoeSmallBatchMost", "as moe_small_batch"),
    ("Turn", "PipelineState", "CUTLASS's word for a stage and its phase", MOE),
    ("slot_for", "stage_bytes_for", "a ring has stages; a slot is a token's expert, or a sequence's place in the cache"),
    ("kSlots", "kStages", "a ring has stages", ATTENTION),
    ("kTwoSlots", "kTwoStages", "a ring has stages"),
    ("written_in_8_bits", "written_int8", "the function is called so"),
    ("take_left", "take_sums or take_experts", "the functions are called so"),
    ("Job", "ActiveRequest", "a request that runs or waits; a job is anything", ROOMS),
    ("Session", "Sequence", "vLLM's word for what a slot holds; the session is the conversation", ROOMS),
    ("SessionMemory", "SessionRows", "the store asks rows, and calls nobody that is above it"),
    ("StepHooks", "Admission", "a step calls what lies below it"),
    ("Fresh", "Sequence::drawn", "what a step drew belongs to its sequence", ROOMS),
    ("EngineImpl", "EngineLoop", "say what it is"),
    ("put_down", "evict", "vLLM's word"),
    ("bring_up", "restore", "the opposite of evict"),
    ("evicting", "evict_one, or what HostTier::put returns", "decisions are returned, not hooked", ROOMS),
    ("let_sleep", "skip_unmapped", "pages are mapped or not"),
    ("asleep", "unmapped", "pages are mapped or not", "^src/(cache|session)/"),
    ("wake_some", "map_pages", "pages are mapped or not"),
    ("kAsleep", "kUnmapped", "pages are mapped or not"),
    ("kAwake", "kMapped", "pages are mapped or not"),
    ("spare_rings", "premap_rings", "pages are mapped before they are wanted"),
    ("Courier", "CopyEngine", "CUDA's word for what copies beside the kernels"),
    ("courier", "copy_engine", "as CopyEngine", "^src/(cache|compose)/"),
    ("Job", "CopyTask", "as ActiveRequest", "^src/cache/"),
    ("JobPtr", "TaskPtr", "as CopyTask", "^src/(cache|session)/"),
    ("cuts", "snapshot_at", "lengths at which a snapshot is taken", ROOMS),
    ("plan_cuts", "plan_snapshots", "as snapshot_at"),
    ("plant", "build_tree", "a draft becomes the tree that is verified", ROOMS),
    ("lane_", "feature_buffer", "a lane is a part of a warp", ROOMS),
    ("settle", "finish_step, flush, commit_chunk", "each of its meanings has a name", ROOMS),
    ("Odds", "HitRate", "how often guesses were right", r"^(src|tests)/"),
    ("hope", "decay", "say what happens to the number", ROOMS),
]

# Still to be renamed: (old, new, where). Nothing fails here; a word goes up into GONE when it has gone.
LEFT = [
    ("image", "act_i8", CUDA), ("image_ready", "act_i8_ready", CUDA), ("images_", "prefill_i8", CUDA),
    ("Fine", "ActPrecision", CUDA), ("fineness", "act_precision", CUDA), ("kTwoBytes", "kInt16", CUDA),
    ("n_set", "k_splits", KERNELS), ("set", "split", KERNELS + "matmul/"), ("leave", "keep_partials", KERNELS + "matmul/"),
    ("strip", "row_block", KERNELS), ("piece", "tile_group", KERNELS), ("run", "warp_range", KERNELS + "matmul/"), ("job", "work_unit", KERNELS + "matmul/"),
    ("late", "depends_late", KERNELS + "matmul/"), ("in_turn", "pdl_serial", CUDA), ("ahead", "pdl_early", CUDA), ("beside", "fused_router", CUDA),
    ("skinny", "small_m", CUDA), ("wide", "batched", KERNELS + "matmul/"), ("prompt", "int8_prefill", KERNELS + "matmul/"),
    ("Job", "Choice", "^src/server/"), ("Mark", "StreamEvent", "^src/cache/"),
    ("settle", "flush, write_staged", "^src/"), ("settle_selected", "merge_selected", "^src/"), ("make_room", "one meaning", "^src/"),
    ("told", "reported", "^src/"), ("noted", "on_note", "^src/"), ("degraded", "on_degraded", "^src/"), ("whoever", "the owner, the caller", "^src/"),
]


def word(old):
    return re.compile(rf"(?<!\w){re.escape(old)}(?!\w)")


ROWS = [(word(old), old, new, why, re.compile(where[0] if where else "")) for old, new, why, *where in GONE]


def violations(path, text):
    rows = [r for r in ROWS if r[4].search(path) and r[1] in text]
    for n, line in enumerate(text.split("\n") if rows else [], 1):
        for pattern, old, new, why, _ in rows:
            if pattern.search(line):
                yield f"{path}:{n}: {old} is called {new} now ({why})"


def bites():
    """That old words are seen, as whole words and where they are old; and that no new word is an old one."""
    def seen(path, line):
        return len(list(violations(path, "\n" + line)))

    assert seen("src/a.cu", "  wait_for_previous();") == 1 and seen("docs/a.md", "after `wait_for_previous`") == 1
    assert seen("src/a.cu", "dont_wait_for_previous(); wait_for_previous2();") == 0
    assert seen("src/backend/cuda/kernels/attention/params.cuh", "enum class Cut {") == 1 and seen("tests/unit/openai_test.cpp", "struct Cut {") == 0
    assert seen("src/backend/cuda/kernels/attention/decode.cuh", "float* turns;") == 1 and seen("src/spec/dflash.h", "who turns") == 0
    assert next(violations("src/a.h", "int b;\nint quick_div;")).startswith("src/a.h:2: quick_div is called fast_div")
    for _, _, new, _, where in ROWS:
        for w in re.findall(r"\w+", new):
            assert not any(p.fullmatch(w) and at.pattern == where.pattern for p, _, _, _, at in ROWS), w


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--count", action="store_true", help="how often words that are still to be renamed stand in the tree")
    o = p.parse_args()
    bites()
    names = subprocess.run(["git", "ls-files", "-z", *FOLDERS], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    texts = {n: (ROOT / n).read_text() for n in names if n.endswith(TEXT) and not NOT.search(n) and (ROOT / n).exists()}
    bad = [v for name, text in texts.items() for v in violations(name, text)]
    print(*bad, f"words: {len(bad)} old ones of {len(GONE)}", sep="\n")
    if o.count:
        print("word\tbecomes\tlines\tfiles")
        for old, new, where in LEFT:
            lines = {n: sum(bool(word(old).search(line)) for line in t.split("\n")) for n, t in texts.items() if re.search(where, n) and old in t}
            print(old, new, sum(lines.values()), sum(n > 0 for n in lines.values()), sep="\t")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
