#pragma once
#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "api/media.h"
#include "backend/pass.h"
#include "media/patches.h"
#include "media/picture.h"
#include "media/sound.h"
#include "model/audio.h"
#include "model/encoder_bind.h"
#include "model/mmproj.h"
#include "model/vision.h"

namespace facet {

// The encoders of an mmproj file on a backend of their own.
// Of an mmproj file's weights: the hash of a piece of each tensor.
std::string mark_of(const MmprojFile& file);

template <EncoderBackend B>
class MediaEncoderOn final : public MediaEncoder {
 public:
  // budget: most soft tokens of a picture, one of kImageTokenBudgets. args: the backend's.
  template <class... Args>
  static Result<std::unique_ptr<MediaEncoder>> open(MmprojFile file, int budget, Args&&... args) {
    std::unique_ptr<MediaEncoderOn> e(new MediaEncoderOn(std::move(file), budget, std::forward<Args>(args)...));
    if (auto ok = e->bind(); !ok) return ok.error();
    return std::unique_ptr<MediaEncoder>(std::move(e));
  }

  bool sees() const override { return file_.vision().has_value(); }
  bool hears() const override { return file_.audio().has_value(); }
  int budget() const override { return budget_; }
  int width() const override { return file_.text_width(); }
  int64_t least_samples() const override { return hears() && file_.audio()->is_unified ? 1 : kLeastMelSamples; }
  int sound_tokens(int64_t samples) const override {
    return int(hears() && file_.audio()->is_unified ? raw_frame_tokens(samples) : conformer_tokens(samples));
  }
  const std::string& projector() const override { return projector_; }

  Result<std::vector<float>> encode(const Picture& picture) override {
    if (!sees()) return no("pictures");
    const std::lock_guard lock(mutex_);
    if constexpr (requires { b_.make_current(); }) b_.make_current();
    const VisionCfg& c = *file_.vision();
    const Patches patches = make_patches(picture, c.cell());
    if (patches.count() > max_patch_)
      return Error{"picture", fmt::format("expected at most {} patches, found {}", max_patch_, patches.count()),
                   "give it fewer soft tokens"};
    if (std::max(patches.columns, patches.rows) > c.n_pos)
      return Error{"picture",
                   fmt::format("expected at most {} patches on a side, as {} has positions, found {} x {}", c.n_pos,
                               file_.path(), patches.columns, patches.rows),
                   "cut it, or give it fewer tokens (--image-tokens)"};
    const EncoderStep::Grid grid[] = {{patches.columns, patches.rows}};
    const EncoderStep e = EncoderStep::pictures(grid);
    std::vector<float> pixels(patches.values.size());
    vision_pixels(c, patches.values, pixels.data());
    b_.from_host(vision_work_.p.view(e.n_tok(), c.patch_cols()), pixels);
    const Step s = e.step();
    return b_.to_host(run_pass(b_, s, &vision_, [&] { return vision_forward(b_, c, vision_, s, vision_work_); }));
  }

  Result<std::vector<float>> encode(std::span<const float> samples) override {
    if (!hears()) return no("sound");
    const std::lock_guard lock(mutex_);
    if constexpr (requires { b_.make_current(); }) b_.make_current();
    const AudioCfg& c = *file_.audio();
    const std::vector<float> rows = c.is_unified ? raw_frames(samples) : log_mel(samples);
    const int cols = c.is_unified ? c.frame : c.n_mel, n = int(rows.size()) / cols;
    if (n < 1 || n > max_row_)
      return Error{"sound", fmt::format("expected 1 to {} frames, found {}", max_row_, n), "give it in pieces of 30 s"};
    b_.from_host(audio_work_.m.view(n, cols), rows);
    const int tokens[] = {c.n_token(n)};
    const EncoderStep e = EncoderStep::sounds(tokens);
    const Step s = e.step();
    return b_.to_host(run_pass(b_, s, &audio_, [&] { return audio_forward(b_, c, audio_, s, n, audio_work_); }));
  }

 private:
  template <class... Args>
  MediaEncoderOn(MmprojFile file, int budget, Args&&... args)
      : file_(std::move(file)),
        budget_(budget),
        projector_(fmt::format("{} {} {}", describe_encoders(file_), file_.weight_bytes(), mark_of(file_))),
        b_(std::forward<Args>(args)...) {}

  Error no(const char* what) const {
    return {file_.path(), fmt::format("has no encoder of {}", what), "another mmproj file of this model may have one"};
  }
  Status bind() {
    if constexpr (requires { b_.take_file(file_.tensors()); }) b_.take_file(file_.tensors());
    if (sees()) {
      auto w = bind_vision(b_, file_);
      if (!w) return w.error();
      vision_ = std::move(*w);
      const VisionCfg& c = *file_.vision();
      max_patch_ = budget_ * (c.is_unified ? 1 : c.pool * c.pool);
      b_.reserve(vision_limits(c, max_patch_));
      vision_work_ = make_vision_work(b_, c, max_patch_);
    }
    if (hears()) {
      auto w = bind_audio(b_, file_);
      if (!w) return w.error();
      audio_ = std::move(*w);
      const AudioCfg& c = *file_.audio();
      max_row_ = int(c.is_unified ? raw_frame_tokens(kPieceSamples) : mel_frames(kPieceSamples));
      b_.reserve(audio_limits(c, max_row_));
      audio_work_ = make_audio_work(b_, c, max_row_);
    }
    return memory_status(b_);
  }

  MmprojFile file_;  // weights stay where they are mapped
  int budget_;
  std::string projector_;
  std::mutex mutex_;
  B b_;
  VisionW<B> vision_;
  VisionWork<B> vision_work_;
  AudioW<B> audio_;
  AudioWork<B> audio_work_;
  int max_patch_ = 0, max_row_ = 0;
};

}  // namespace facet
