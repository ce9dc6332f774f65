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
constexpr int kNarrow = 2;     // vectors of columns of a full tile
constexpr int wide(int rows) { return rows <= 3 ? 8 : rows == 4 ? 6 : rows <= 6 ? 4 : 2; }
#else
constexpr int kTileRows = 5;
constexpr int kNarrow = 2;
constexpr int wide(int rows) { return rows == 1 ? 4 : 2; }
#endif
constexpr int kGroupVectors = kGroupColumns / W;
constexpr int kMostColumns = 8 * 16;  // of the widest tile
constexpr int64_t kAhead = 1024;      // bytes of the weight that are asked for before they are needed

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
  int64_t group;                      // elements from a group to the next
  int64_t inputs;
  float* out;
  int64_t ldo;
};

template <class E, bool kIsPacked, int R, int V>
void multiply(const Tile<E>& tile) {
  constexpr int kStep = kGroupColumns * E::kPerWord;
  Vec sums[R][V];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) sums[r][v] = zero();
  const auto step = [&](const typename E::Element* w, const auto& x_of) __attribute__((always_inline)) {
    typename E::Word words[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      const auto* at = w + v / kGroupVectors * tile.group + v % kGroupVectors * W * E::kPerWord;
      words[v] = E::load(at);
      __builtin_prefetch(reinterpret_cast<const char*>(at) + kAhead);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const auto x = E::all(x_of(r));
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) sums[r][v] = E::dot(sums[r][v], x, words[v]);
    }
  };
  const auto* w = tile.weight;
  const auto* x = tile.x;
  const int64_t whole = (tile.inputs + (kIsPacked ? E::kPerWord - 1 : 0)) / E::kPerWord;
  for (int64_t k = 0; k < whole; ++k, w += kStep) {
    step(w, [&](int r) __attribute__((always_inline)) { return kIsPacked ? x + r * E::kPerWord : x + r * tile.ldx; });
    x += kIsPacked ? R * E::kPerWord : E::kPerWord;
  }
  if (!kIsPacked && tile.inputs % E::kPerWord) {  // half a word: what follows the row in memory is not ours to read
    typename E::Element last[R][E::kPerWord] = {};
    for (int r = 0; r < R; ++r) last[r][0] = x[r * tile.ldx];
    step(w, [&](int r) { return last[r]; });
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) store(tile.out + r * tile.ldo + v * W, sums[r][v]);
}

template <class E>
using Multiply = void (*)(const Tile<E>&);

// multiply for 1 to kTileRows rows.
template <class E, bool kIsPacked, int... R>
constexpr auto narrow_tiles(std::integer_sequence<int, R...>) {
  return std::array<Multiply<E>, sizeof...(R)>{multiply<E, kIsPacked, R + 1, kNarrow>...};
}

template <class E, int... R>
constexpr auto wide_tiles(std::integer_sequence<int, R...>) {
  return std::array<Multiply<E>, sizeof...(R)>{multiply<E, false, R + 1, wide(R + 1)>...};
}

template <class E, bool kIsPacked>
Multiply<E> narrow_tile(int rows) {
  static constexpr auto tiles = narrow_tiles<E, kIsPacked>(std::make_integer_sequence<int, kTileRows>());
  return tiles[rows - 1];
}

template <class E>
Multiply<E> wide_tile(int rows) {
  static constexpr auto tiles = wide_tiles<E>(std::make_integer_sequence<int, kTileRows>());
  return tiles[rows - 1];
}

}  // namespace TPT_ISA
}  // namespace tapetum
