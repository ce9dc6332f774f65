// The inner loop of every product: a tile of rows times columns, its sums in registers from the first input to the last.
#pragma once
#include <array>
#include <utility>

#include "pack.h"
#include "vec.h"

namespace tapetum {
namespace TPT_ISA {

#if defined(__AVX512BF16__)
constexpr int kTileRows = 14;  // with two vectors of columns, 28 sums of the 32 registers
#else
constexpr int kTileRows = 5;
#endif
constexpr int kTileVectors = 2;
constexpr int kTileColumns = kTileVectors * W;
constexpr int64_t kAhead = 4096;  // bytes of the weight that are asked for before they are needed

// What the inner loop knows of an element type: a word is what one step multiplies.
struct Float32 {
  using Element = float;
  using Word = Vec;
  static constexpr int kPerWord = 1;
  static Word load(const float* p) { return TPT_ISA::load(p); }
  static Word all(const float* p) { return TPT_ISA::all(*p); }
  static Vec dot(Vec sum, Word x, Word w) { return fma(x, w, sum); }
};

struct Bfloat16 {
  using Element = bf16;
  using Word = Pairs;
  static constexpr int kPerWord = 2;
  static Word load(const bf16* p) { return load_pairs(p); }
  static Word all(const bf16* p) { return all_pairs(p); }
  static Vec dot(Vec sum, const Word& x, const Word& w) { return TPT_ISA::dot(sum, x, w); }
};

// The operands of a tile. Rows are either those of the caller, `ldx` apart, or packed: [steps][rows] words.
template <class E>
struct Tile {
  const typename E::Element* x;
  int64_t ldx;
  const typename E::Element* weight;  // of the first column
  int64_t inputs;
  int64_t ahead;  // bytes from a word of the weight to the one that is asked for meanwhile
  float* sums;    // kGroupColumns from a row to the next
};

template <class E, bool kIsPacked, int R>
void multiply(const Tile<E>& tile) {
  using Element = typename E::Element;
  constexpr int V = kTileVectors;
  Vec sums[R][V];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) sums[r][v] = zero();
  const auto step = [&](const Element* w, const auto& x_of) __attribute__((always_inline)) {
    typename E::Word words[V];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      words[v] = E::load(w + v * W * E::kPerWord);
      __builtin_prefetch(reinterpret_cast<const char*>(w + v * W * E::kPerWord) + tile.ahead);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const auto x = E::all(x_of(r));
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) sums[r][v] = E::dot(sums[r][v], x, words[v]);
    }
  };
  const Element *w = tile.weight, *x = tile.x;
  const int64_t whole = (tile.inputs + (kIsPacked ? E::kPerWord - 1 : 0)) / E::kPerWord;
  for (int64_t k = 0; k < whole; ++k, w += kGroupColumns * E::kPerWord) {
    step(w, [&](int r) __attribute__((always_inline)) { return x + r * (kIsPacked ? E::kPerWord : tile.ldx); });
    x += kIsPacked ? R * E::kPerWord : E::kPerWord;
  }
  if (!kIsPacked && tile.inputs % E::kPerWord) {  // half a word: what follows the row in memory is not ours to read
    Element last[R][E::kPerWord] = {};
    for (int r = 0; r < R; ++r) last[r][0] = x[r * tile.ldx];
    step(w, [&](int r) { return last[r]; });
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) store(tile.sums + r * kGroupColumns + v * W, sums[r][v]);
}

template <class E>
using Multiply = void (*)(const Tile<E>&);

template <class E, bool kIsPacked, int... R>
constexpr auto multiply_of_all_heights(std::integer_sequence<int, R...>) {
  return std::array<Multiply<E>, sizeof...(R)>{multiply<E, kIsPacked, R + 1>...};
}

// The sums of a whole group for 1 to kTileRows rows.
template <class E, bool kIsPacked>
void multiply_group(int rows, Tile<E> tile) {
  static constexpr auto kOfHeight =
      multiply_of_all_heights<E, kIsPacked>(std::make_integer_sequence<int, kTileRows>());
  for (int64_t column = 0; column < kGroupColumns; column += kTileColumns) {
    kOfHeight[rows - 1](tile);
    tile.weight += kTileColumns * E::kPerWord;
    tile.sums += kTileColumns;
  }
}

}  // namespace TPT_ISA
}  // namespace tapetum
