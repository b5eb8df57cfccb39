// Drafter files: every dialect says the same, and what does not fit is refused with both values.
#include <cstring>
#include <functional>
#include <random>
#include <set>

#include "formats/gguf.h"
#include "formats/mixture.h"
#include "formats/requantize.h"
#include "model/drafter_convert.h"
#include "support/drafter_bench.h"
#include "support/drafter_refusal.h"

namespace facet::test {
namespace {

ModelCfg target() {
  return StandIn<CpuRef>(must(SafetensorsFile::open(data_path("drafters/mtp/golden.safetensors"))), exact_plan()).m;
}

std::string temp(const std::string& name) {
  return (std::filesystem::temp_directory_path() / ("facet-" + std::to_string(getpid()) + "-" + name)).string();
}
struct TempFile {
  std::string path;
  explicit TempFile(const std::string& name) : path(temp(name)) {}
  ~TempFile() { std::filesystem::remove(path); }
};

// A GGUF again with other names and keys; an empty new name leaves a key out.
void rewrite(const std::string& from, const std::string& to, const std::function<std::string(std::string)>& key,
             const std::function<std::string(std::string)>& tensor, const std::function<void(GgufWriter&)>& more = {},
             const std::function<std::vector<std::byte>(const TensorView&)>& data = {}) {
  const auto in = must(GgufFile::open(from));
  GgufWriter w;
  for (const auto& [k, v] : in.meta())
    if (const std::string name = key(k); !name.empty())
      name == "general.architecture" ? w.add(name, key("general.architecture=")) : w.add_raw(name, v);
  if (more) more(w);
  for (const TensorView& t : in.tensors())
    w.add_tensor(tensor(t.name), t.type, {t.ne.begin(), t.ne.begin() + std::max(1, t.n_dims)});
  must(w.begin(to));
  for (const TensorView& t : in.tensors()) {
    const auto bytes = data ? data(t) : std::vector<std::byte>(t.data.begin(), t.data.end());
    must(w.write(bytes));
  }
  must(w.finish());
}
std::string replaced(std::string s, const std::string& a, const std::string& b) {
  if (const size_t at = s.find(a); at != std::string::npos) s.replace(at, a.size(), b);
  return s;
}

void expect_same_weights(const DrafterFile& a, const DrafterFile& b) {
  for (const TensorView& t : a.tensors()) {
    const TensorView* u = b.find(t.name);
    ASSERT_TRUE(u) << t.name;
    ASSERT_EQ(t.ne, u->ne) << t.name;
    if (!dtype_info(t.type).matmul) continue;
    std::vector<float> x(static_cast<size_t>(t.n_elements())), y(x.size());
    dequantize_row(t.type, t.data.data(), x.data(), int64_t(x.size()));
    dequantize_row(u->type, u->data.data(), y.data(), int64_t(y.size()));
    EXPECT_EQ(x, y) << t.name;
  }
}
void expect_same(const DflashCfg& a, const DflashCfg& b) {
  EXPECT_EQ(a.taps, b.taps);
  EXPECT_EQ(a.block, b.block);
  EXPECT_EQ(a.mask_id, b.mask_id);
  EXPECT_EQ(a.freqs, b.freqs);
  EXPECT_EQ(a.body.embed_scale, b.body.embed_scale);
  EXPECT_EQ(a.body.softcap, b.body.softcap);
  EXPECT_EQ(a.body.n_q_head, b.body.n_q_head);
  ASSERT_EQ(a.body.layer.size(), b.body.layer.size());
  for (size_t l = 0; l < a.body.layer.size(); ++l) {
    EXPECT_EQ(a.body.layer[l].window, b.body.layer[l].window);
    EXPECT_EQ(a.body.layer[l].causal_block, b.body.layer[l].causal_block);
    EXPECT_EQ(a.body.layer[l].n_kv_head, b.body.layer[l].n_kv_head);
    EXPECT_EQ(a.body.layer[l].d_ff, b.body.layer[l].d_ff);
  }
}

TEST(DflashFile, EveryDialectSaysTheSame) {
  const ModelCfg m = target();
  const auto source = must(DrafterFile::open(data_path("drafters/dflash")));
  const DflashCfg want = must(dflash_config(source, m));
  EXPECT_EQ(want.taps, (std::vector<int>{0, 2, 3}));
  EXPECT_EQ(want.body.embed_scale, 8.f);  // the target's, once
  EXPECT_TRUE(want.body.layer[0].causal_block && !want.body.layer[2].causal_block);

  const TempFile u("u.gguf"), d("d.gguf"), g("g.gguf");
  must(convert_drafter(source, nullptr, u.path));
  auto fork_key = [](const std::string& arch) {
    return [arch](std::string k) -> std::string {
      if (k == "general.architecture=") return arch;
      if (k == "dflash.target_layers" || k == "dflash.block_size" || k == "dflash.mask_token_id" ||
          k.starts_with("tokenizer."))
        return "";
      return k.starts_with("dflash.") ? arch + k.substr(6) : k;
    };
  };
  auto fork_more = [](const std::string& arch, bool own) {
    return [=](GgufWriter& w) {  // numbers not shifted
      w.add(arch + ".dflash.target_layer_ids", std::vector<int64_t>{0, 2, 3});
      w.add(arch + ".dflash.block_size", int64_t(8));
      w.add(arch + ".dflash.mask_token_id", int64_t(4));
      if (own)
        w.add(arch + ".dflash.n_target_layers", int64_t(6));
      else
        w.add(arch + ".attention.causal", false);  // written into every such file; says nothing about the block
    };
  };
  rewrite(
      u.path, d.path, fork_key("dflash-draft"),
      [](std::string n) {
        return n == "fc.weight"                ? "dflash_fc.weight"
               : n == "enc.output_norm.weight" ? "dflash_hidden_norm.weight"
                                               : replaced(n, "ffn_norm", "post_attention_norm");
      },
      fork_more("dflash-draft", false));
  rewrite(
      u.path, g.path, fork_key("gemma4-dflash-draft"),
      [](std::string n) {
        return n == "fc.weight" ? "dflash.fc.weight" : n == "enc.output_norm.weight" ? "dflash.hidden_norm.weight" : n;
      },
      fork_more("gemma4-dflash-draft", true));
  for (const std::string& path : {u.path, d.path, g.path}) {
    const auto file = must(DrafterFile::open(path));
    EXPECT_EQ(file.kind(), DrafterKind::kDflash);
    expect_same(must(dflash_config(file, m)), want);
    expect_same_weights(source, file);
  }
}

TEST(MtpFile, EveryDialectSaysTheSame) {
  const ModelCfg m = target();
  const auto source = must(DrafterFile::open(data_path("drafters/mtp")));
  const MtpCfg want = must(mtp_config(source, m));
  EXPECT_EQ(want.n_cluster, 16);
  EXPECT_EQ(want.top_k, 3);
  for (int l = 0; l < 4; ++l) EXPECT_EQ(want.body.layer[size_t(l)].kv_source, l < 3 ? 4 : 5);  // the last of each kind

  const TempFile a("a.gguf"), b("b.gguf"), c("c.gguf");
  must(convert_drafter(source, nullptr, a.path));
  auto key = [](const std::string& arch, const std::string& width) {
    return [=](std::string k) -> std::string {
      if (k == "general.architecture=") return arch;
      if (k == "gemma4-assistant.embedding_length_out") return arch + "." + width;
      return replaced(k, "gemma4-assistant.", arch + ".");
    };
  };
  rewrite(a.path, b.path, key("gemma4_assistant", "n_embd_backbone"), [](std::string n) {
    return n == "masked_embd_centroids.weight" ? "mtp.centroids.weight"
           : n == "masked_embd_ordering"       ? "mtp.token_ordering.weight"
                                               : replaced(n, "nextn.", "mtp.");
  });
  // The last dialect holds the cluster of each token instead of the tokens of each cluster.
  rewrite(
      a.path, c.path, key("gemma4_mtp", "backbone_embedding_length"),
      [](std::string n) {
        return n == "masked_embd_centroids.weight"   ? "mtp_centroids.weight"
               : n == "masked_embd_ordering"         ? "mtp_token_ordering.weight"
               : n == "nextn.pre_projection.weight"  ? "mtp_pre_proj.weight"
               : n == "nextn.post_projection.weight" ? "mtp_post_proj.weight"
                                                     : n;
      },
      {},
      [&](const TensorView& t) {
        std::vector<std::byte> out(t.data.begin(), t.data.end());
        if (t.name == "masked_embd_ordering")
          for (int i = 0; i < 128; ++i) {
            const int32_t cluster = i / 8;
            std::memcpy(out.data() + 4 * want.order[size_t(i)], &cluster, 4);
          }
        return out;
      });
  for (const std::string& path : {a.path, b.path, c.path}) {
    const auto file = must(DrafterFile::open(path));
    EXPECT_EQ(file.kind(), DrafterKind::kMtp);
    const MtpCfg got = must(mtp_config(file, m));
    EXPECT_EQ(got.freqs, want.freqs);
    EXPECT_EQ(got.top_k, want.top_k);
    for (int n = 0; n < 16; ++n) {  // the order inside a cluster is free
      auto set = [&](const MtpCfg& x) {
        return std::set<int32_t>(x.order.begin() + 8 * n, x.order.begin() + 8 * (n + 1));
      };
      EXPECT_EQ(set(got), set(want));
    }
    for (int l = 0; l < 4; ++l) EXPECT_EQ(got.body.layer[size_t(l)].kv_source, want.body.layer[size_t(l)].kv_source);
    EXPECT_TRUE(file.find("nextn.pre_projection.weight"));
  }
}

TEST(DrafterFile, QuantisedFilesLoad) {
  const ModelCfg m = target();
  for (const char* kind : {"dflash", "mtp"})
    for (const char* type : {"Q8_0", "Q4_K_M"}) {
      const TempFile full("full.gguf"), small("small.gguf");
      must(convert_drafter(must(DrafterFile::open(data_path(std::string("drafters/") + kind))), nullptr, full.path));
      must(requantize(must(GgufFile::open(full.path)), small.path, *find_mixture(type), {}, {}));
      const auto file = must(DrafterFile::open(small.path));
      EXPECT_LT(file.file_bytes(), must(DrafterFile::open(full.path)).file_bytes());
      if (file.kind() == DrafterKind::kDflash)
        must(dflash_config(file, m));
      else
        EXPECT_EQ(must(mtp_config(file, m)).n_cluster, 16);
    }
}

#define EXPECT_REFUSED(path, m, ...)                                                  \
  do {                                                                                \
    const std::string message = drafter_refusal(path, m);                             \
    for (const char* part : {__VA_ARGS__})                                            \
      EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message; \
  } while (0)

TEST(DrafterFile, AnotherTargetIsRefused) {
  const ModelCfg good = target();
  const std::string dflash = data_path("drafters/dflash"), mtp = data_path("drafters/mtp");
  EXPECT_EQ(drafter_refusal(dflash, good), "");
  EXPECT_EQ(drafter_refusal(mtp, good), "");
  ModelCfg m = good;
  m.d_model = 96;
  EXPECT_REFUSED(dflash, m, "expected 96", "found 64", "another target");
  EXPECT_REFUSED(mtp, m, "expected 192", "found 128", "another target");
  m = good, m.n_vocab = 256;
  EXPECT_REFUSED(dflash, m, "vocabulary", "256", "128");
  EXPECT_REFUSED(mtp, m, "vocabulary", "256", "128");
  m = good, m.layer.resize(4);
  EXPECT_REFUSED(dflash, m, "layers of the target", "4", "6");
  m = good, m.layer[4].head_dim = 64;
  EXPECT_REFUSED(mtp, m, "head width of layer 0", "layer 4 of the target", "64", "32");
  m = good, m.layer[5].n_kv_head = 2;
  EXPECT_REFUSED(mtp, m, "K/V heads of layer 3", "2", "1");
  m = good;
  for (LayerCfg& c : m.layer) c.window = 0;
  EXPECT_REFUSED(mtp, m, "sliding layer of the target", "none");
}

TEST(DrafterFile, ContradictionsAreRefused) {
  const ModelCfg m = target();
  const std::string dflash = data_path("drafters/dflash"), mtp = data_path("drafters/mtp");
  struct Case {
    std::string folder, find, put;
    std::vector<const char*> said;
  };
  for (const Case& c : {
           Case{dflash,
                "\"target_layer_ids\": [\n   0,\n   2,\n   3\n  ]",
                "\"target_layer_ids\": [0, 2, 5]",
                {"target_layer_ids", "[0, 5)", "5 at place 2"}},
           {dflash,
            "\"target_layer_ids\": [\n   0,\n   2,\n   3\n  ]",
            "\"target_layer_ids\": [2, 0, 3]",
            {"ascending", "0 at place 1"}},
           {dflash,
            "\"target_layer_ids\": [\n   0,\n   2,\n   3\n  ]",
            "\"target_layer_ids\": [0, 2]",
            {"3 layers", "found 2"}},
           {dflash, "\"target_layer_ids\"", "\"other\"", {"target_layer_ids", "none"}},
           {dflash, "\"mask_token_id\": 4", "\"mask_token_id\": 128", {"mask_token_id", "[0, 127]", "128"}},
           {dflash, "\"block_size\": 8", "\"block_size\": 1", {"block_size", "[2, 64]"}},
           {dflash, "\"block_size\": 8", "\"block_size\": \"8\"", {"block_size", "an integer"}},
           {dflash, "\"rope_theta\": 1000000.0", "\"other\": 1", {"rope_theta", "none"}},
           {dflash, "\"num_hidden_layers\": 3", "\"num_hidden_layers\": 5", {"layers", "5", "3"}},
           {dflash, "\"intermediate_size\": 96", "\"intermediate_size\": 97", {"FFN width", "96", "97"}},
           {dflash, "\"sliding_window\": 16", "\"sliding_window\": 0", {"sliding_window", "0"}},
           {dflash, "DFlashDraftModel", "DFlash2DraftModel", {"selector_predecessor.weight", "none"}},
           {dflash, "DFlashDraftModel", "LlamaForCausalLM", {"expected a drafter", "LlamaForCausalLM"}},
           {dflash, "\"hidden_act\": \"silu\"", "\"hidden_act\": \"gelu\"", {"hidden_act", "silu"}},
           {mtp, "\"backbone_hidden_size\": 64", "\"backbone_hidden_size\": 65", {"64", "65"}},
           {mtp,
            "\"centroid_intermediate_top_k\": 3",
            "\"centroid_intermediate_top_k\": 17",
            {"top_k", "[1, 16]", "17"}},
           {mtp, "\"num_attention_heads\": 4", "\"num_attention_heads\": 8", {"heads", "4", "8"}},
           {mtp, "\"rope_type\": \"proportional\"", "\"rope_type\": \"yarn\"", {"yarn"}},
           {mtp, "{", "[", {"JSON"}},
       }) {
    const Folder f(c.folder, c.find, c.put);
    const std::string message = drafter_refusal(f.path(), m);
    for (const char* part : c.said) EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
  }
  EXPECT_REFUSED(data_path("fixtures/dense/model.gguf"), m, "expected a drafter", "gemma4", "-m");
  EXPECT_REFUSED(temp("nothing"), m, "no such file");
  EXPECT_REFUSED(data_path("tokenizer"), m, "found none", "name the file");
}

// Damaged files are refused or load; nothing else happens.
TEST(DrafterFile, DamageIsNoCrash) {
  const ModelCfg m = target();
  std::mt19937 rng(7);
  auto bytes_of = [](const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return std::string((std::istreambuf_iterator<char>(in)), {});
  };
  int loaded = 0, refused = 0;
  for (const char* kind : {"dflash", "mtp"}) {
    const std::string folder = data_path(std::string("drafters/") + kind);
    const TempFile good("good.gguf"), bad("bad.gguf");
    must(convert_drafter(must(DrafterFile::open(folder)), nullptr, good.path));
    const std::string gguf = bytes_of(good.path), config = bytes_of(folder + "/config.json");
    const Folder copy(folder);
    for (int i = 0; i < 200; ++i) {
      std::string a = gguf, b = config;
      for (int n = 0; n < 3; ++n) {
        a[rng() % 3000] = char(rng());  // header and infos
        b[rng() % b.size()] = char(rng() % 96 + 32);
      }
      if (i % 10 == 0) a.resize(rng() % a.size());
      std::ofstream(bad.path, std::ios::binary) << a;
      std::ofstream(copy.path() + "/config.json", std::ios::binary) << b;
      for (const std::string& path : {bad.path, copy.path()}) drafter_refusal(path, m).empty() ? ++loaded : ++refused;
    }
  }
  EXPECT_GT(refused, 200);
  EXPECT_GT(loaded, 20);  // some bytes mean nothing
}

TEST(MtpFile, OrderingsThatAreNone) {
  const ModelCfg m = target();
  const TempFile a("a.gguf"), bad("bad.gguf");
  must(convert_drafter(must(DrafterFile::open(data_path("drafters/mtp"))), nullptr, a.path));
  for (const auto& spoil : std::vector<std::function<int32_t(int, int32_t)>>{
           [](int, int32_t) { return 0; },                       // an empty buffer
           [](int i, int32_t v) { return i == 5 ? v + 1 : v; },  // one twice
           [](int i, int32_t v) { return i == 5 ? -1 : v; }, [](int i, int32_t v) { return i == 5 ? 1 << 30 : v; }}) {
    rewrite(
        a.path, bad.path,
        [](std::string k) { return k == "general.architecture=" ? std::string("gemma4-assistant") : k; },
        [](std::string n) { return n; }, {},
        [&](const TensorView& t) {
          std::vector<std::byte> out(t.data.begin(), t.data.end());
          for (int i = 0; i < 128 && t.name == "masked_embd_ordering"; ++i) {
            int32_t v;
            std::memcpy(&v, out.data() + 4 * i, 4);
            v = spoil(i, v);
            std::memcpy(out.data() + 4 * i, &v, 4);
          }
          return out;
        });
    EXPECT_REFUSED(bad.path, m, "masked_embd_ordering", "neither");
  }
}

}  // namespace
}  // namespace facet::test
