#include "decoder.h"

#include <algorithm>
#include <cstring>

#include "add.h"
#include "api.h"
#include "norm.h"
#include "rotary.h"
#include "rows.h"

namespace tapetum {
namespace {

constexpr int64_t kLine = 64;  // bytes

int64_t joined_width(const Decoder& decoder) {
  return int64_t(decoder.heads + 2 * decoder.kv_heads) * decoder.head_dim;
}

int64_t mixed_width(const Decoder& decoder) { return int64_t(decoder.heads) * decoder.head_dim; }

int64_t in_lines(int64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

// Two areas are enough for the layers: what goes into a product lies in `narrow`, and what comes out of it in `wide`, or
// the other way round.
int64_t narrow_bytes(const Decoder& decoder, int64_t tokens) {
  return in_lines(tokens * std::max(decoder.hidden, mixed_width(decoder)) * size_of(decoder.dtype));
}

int64_t wide_bytes(const Decoder& decoder, int64_t tokens) {
  int64_t width = std::max(joined_width(decoder), decoder.hidden);
  for (int64_t i = 0; i < decoder.num_layers; ++i) width = std::max(width, decoder.layers[i].gate_up->outputs);
  return in_lines(tokens * width * size_of(decoder.dtype));
}

// Of cos, and of sin.
int64_t turn_bytes(const Decoder& decoder, int64_t tokens) {
  return in_lines(tokens * decoder.head_dim * size_of(decoder.dtype));
}

// Keep the rows [count] of a matrix that are wanted, in its first rows.
void keep_rows(void* matrix, int64_t row_bytes, const int64_t* wanted, int64_t count) {
  char* rows = static_cast<char*>(matrix);
  for (int64_t i = 0; i < count; ++i)
    if (wanted[i] != i) std::memcpy(rows + i * row_bytes, rows + wanted[i] * row_bytes, row_bytes);
}

class Run {
 public:
  Run(const Decoder& decoder, const DecoderStep& step)
      : decoder_(decoder),
        step_(step),
        norm_{decoder.dtype, decoder.hidden, decoder.eps, decoder.has_wide_norms},
        narrow_(static_cast<char*>(step.workspace)),
        wide_(narrow_ + narrow_bytes(decoder, step.tokens)),
        turns_(wide_ + wide_bytes(decoder, step.tokens)) {}

  void all_layers() {
    int64_t tokens = step_.tokens;
    for (int64_t i = 0; i < decoder_.num_turns; ++i) {
      const TurnTable& table = decoder_.turns[i];
      make_turns({decoder_.dtype, tokens, decoder_.head_dim / 2, step_.positions, table.axis, table.frequency, cos(i),
                  sin(i), table.scale});
    }
    for (int64_t i = 0; i < decoder_.num_layers; ++i) {
      attend(decoder_.layers[i], step_.caches[i]);
      if (i + 1 == decoder_.num_layers && step_.levels <= i) {  // from here on only what samples counts
        keep_sampled(narrow_, mixed_width(decoder_));
        keep_sampled(step_.x, decoder_.hidden);
        tokens = step_.num_sampled;
      }
      finish(decoder_.layers[i], tokens);
      if (i < step_.levels) deepen(i);
    }
    if (step_.levels >= decoder_.num_layers) keep_sampled(step_.x, decoder_.hidden);
    rms_norm(norm_, step_.x, decoder_.norm, step_.num_sampled, step_.out);
  }

 private:
  char* cos(int64_t table) const { return turns_ + 2 * table * turn_bytes(decoder_, step_.tokens); }
  char* sin(int64_t table) const { return cos(table) + turn_bytes(decoder_, step_.tokens); }

  void keep_sampled(void* matrix, int64_t width) const {
    keep_rows(matrix, width * size_of(decoder_.dtype), step_.sampled, step_.num_sampled);
  }

  // x -> narrow: what attention mixes for each token.
  void attend(const DecoderLayer& layer, void* keys_and_values) {
    const int64_t joined = joined_width(decoder_), width = decoder_.head_dim;
    const int heads = decoder_.heads, kv_heads = decoder_.kv_heads;
    rms_norm(norm_, step_.x, layer.norm1, step_.tokens, narrow_);
    linear(*layer.qkv, narrow_, decoder_.hidden, step_.tokens, nullptr, 0, wide_, joined);
    if (layer.q_norm) {
      const NormShape head{decoder_.dtype, width, decoder_.eps, decoder_.has_wide_norms};
      rms_norm_heads(head, wide_, layer.q_norm, step_.tokens, heads, joined);
      rms_norm_heads(head, wide_ + heads * width * size_of(decoder_.dtype), layer.k_norm, step_.tokens, kv_heads,
                     joined);
    }
    rotate({decoder_.dtype, step_.tokens, heads + kv_heads, width, joined, joined}, wide_, cos(layer.turns),
           sin(layer.turns), wide_);
    const Cache cache{keys_and_values, step_.num_blocks, step_.block_size, kv_heads, int(width), decoder_.dtype};
    const char* keys = wide_ + heads * width * size_of(decoder_.dtype);
    const char* values = keys + kv_heads * width * size_of(decoder_.dtype);
    write_kv(cache, keys, values, joined, step_.slots, step_.tokens);
    paged_attention(wide_, joined, cache, {step_.rows, step_.num_rows, step_.blocks, step_.reach}, heads,
                    decoder_.scale, narrow_, mixed_width(decoder_), layer.window);
  }

  // narrow and x -> x: the rest of the layer.
  void finish(const DecoderLayer& layer, int64_t tokens) {
    const int64_t hidden = decoder_.hidden, inner = layer.gate_up->outputs;
    add_to_x(*layer.out, narrow_, mixed_width(decoder_), tokens, layer.post1, wide_);
    rms_norm(norm_, step_.x, layer.norm2, tokens, narrow_);
    linear(*layer.gate_up, narrow_, hidden, tokens, nullptr, 0, wide_, inner);
    add_to_x(*layer.down, wide_, inner, tokens, layer.post2, narrow_);
  }

  // x += the product, normalised where there is a norm behind it; `beside` is the area that `from` does not lie in.
  void add_to_x(const Weight& weight, const char* from, int64_t width, int64_t tokens, const void* post,
                char* beside) const {
    const int64_t hidden = decoder_.hidden;
    if (!post) return linear(weight, from, width, tokens, step_.x, hidden, step_.x, hidden);
    linear(weight, from, width, tokens, nullptr, 0, beside, hidden);
    rms_norm(norm_, beside, post, tokens, beside);
    add_rows(decoder_.dtype, step_.x, beside, hidden, tokens, hidden);
  }

  void deepen(int64_t level) const {
    const int64_t hidden = decoder_.hidden, size = size_of(decoder_.dtype);
    for (int64_t i = 0; i < step_.num_deep; ++i) {
      const DeepFeatures& run = step_.deep[i];
      add_rows(decoder_.dtype, static_cast<char*>(step_.x) + run.start * hidden * size,
               static_cast<const char*>(run.values) + level * hidden * size, step_.levels * hidden,
               run.end - run.start, hidden);
    }
  }

  const Decoder& decoder_;
  const DecoderStep& step_;
  const NormShape norm_;
  char* const narrow_;
  char* const wide_;
  char* const turns_;  // cos and sin of each table
};

}  // namespace

int64_t decoder_workspace(const Decoder& decoder, int64_t tokens) {
  return narrow_bytes(decoder, tokens) + wide_bytes(decoder, tokens) +
         2 * decoder.num_turns * turn_bytes(decoder, tokens);
}

void run_decoder(const Decoder& decoder, const DecoderStep& step) { Run(decoder, step).all_layers(); }

}  // namespace tapetum

TPT_API int64_t tpt_decoder_workspace(const tapetum::Decoder* decoder, int64_t tokens) {
  return tapetum::decoder_workspace(*decoder, tokens);
}

TPT_API void tpt_run_decoder(const tapetum::Decoder* decoder, const tapetum::DecoderStep* step) {
  tapetum::run_decoder(*decoder, *step);
}
