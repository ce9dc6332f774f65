// Walks the tiles of a product and gives each to a sink, which makes outputs of its sums.
//
// Few rows are read where they are. Many are packed first, since their strides are often powers of two, which share one
// set of the cache; then a group of columns stays in the second cache while all packed rows pass by.
#pragma once
#include <algorithm>

#include "scratch.h"
#include "gemm_tile.h"
#include "pool.h"

namespace tapetum {
namespace TPT_ISA {

constexpr int64_t kPackedBytes = 4 << 20;  // of packed rows, at most
constexpr int64_t kPartsPerThread = 8;     // where there are that many
constexpr int64_t kFewRows = 64;           // up to here the weight takes longer to arrive than to multiply, or nearly
constexpr int64_t kMostGroups = 8;         // of a part

// Columns are taken in parts of whole groups: several for few rows, so that a thread reads on where it was.
struct Parts {
  int64_t groups, groups_per_part, count;
};

inline Parts parts_of(const Weight& weight, int64_t rows) {
  const int64_t groups = num_groups(weight.outputs, weight.activation);
  const int64_t width =
      rows > kFewRows ? 1 : std::clamp<int64_t>(groups / (num_threads() * kPartsPerThread), 1, kMostGroups);
  return {groups, width, (groups + width - 1) / width};
}

template <class E>
struct Product {
  const Weight& weight;
  const typename E::Element* x;
  int64_t ldx, rows;
  Parts parts;

  const typename E::Element* data() const { return static_cast<const typename E::Element*>(weight.data); }
  int64_t steps() const { return num_steps(weight.inputs, weight.dtype); }
  int64_t group_size() const { return steps() * kGroupColumns * E::kPerWord; }
};

// Rows of the caller, [start, start + count), as [steps][count] words.
template <class E>
void pack_rows(const Product<E>& product, int64_t start, int64_t count, typename E::Element* to) {
  constexpr int64_t kBlock = 16;
  const int64_t inputs = product.weight.inputs, steps = product.steps(), whole = inputs / E::kPerWord;
  for (int64_t first = 0; first < whole; first += kBlock) {
    const int64_t last = std::min(whole, first + kBlock);
    for (int64_t r = 0; r < count; ++r) {
      const auto* x = product.x + (start + r) * product.ldx;
      for (int64_t k = first; k < last; ++k) memcpy(to + (k * count + r) * E::kPerWord, x + k * E::kPerWord, 4);
    }
  }
  for (int64_t r = 0; whole < steps && r < count; ++r) {
    auto* word = to + (whole * count + r) * E::kPerWord;
    word[0] = product.x[(start + r) * product.ldx + inputs - 1];
    for (int i = 1; i < E::kPerWord; ++i) word[i] = 0;
  }
}

// sink(part, row, rows, group, sums): the sums of one group of columns, kGroupColumns from a row to the next.
template <class E, class Sink>
void multiply_few(const Product<E>& product, Sink& sink) {
  const int rows = int(product.rows);
  const int64_t size = product.group_size();
  parallel_for(product.parts.count, [&](int64_t part) {
    alignas(64) float sums[kTileRows * kGroupColumns];
    const int64_t end = std::min(product.parts.groups, (part + 1) * product.parts.groups_per_part);
    for (int64_t group = part * product.parts.groups_per_part; group < end; ++group) {
      multiply_group<E, false>(
          rows, {product.x, product.ldx, product.data() + group * size, product.weight.inputs, kAhead, sums});
      sink(part, 0, rows, group, sums);
    }
  });
}

// Rows [start, start + count), which fit in `packed`, in tiles of nearly equal heights.
template <class E, class Sink>
void multiply_block(const Product<E>& product, int64_t start, int64_t count, typename E::Element* packed,
                    Sink& sink) {
  const int64_t tiles = (count + kTileRows - 1) / kTileRows, size = product.group_size();
  const int64_t row_size = product.steps() * E::kPerWord;
  const auto first = [&](int64_t tile) { return tile * count / tiles; };
  parallel_for(tiles, [&](int64_t tile) {
    pack_rows(product, start + first(tile), first(tile + 1) - first(tile), packed + first(tile) * row_size);
  });
  const Parts& parts = product.parts;
  const int64_t splits =
      std::clamp<int64_t>((num_threads() * kPartsPerThread + parts.count - 1) / parts.count, 1, tiles);
  parallel_for(parts.count * splits, [&](int64_t piece) {
    alignas(64) float sums[kTileRows * kGroupColumns];
    const int64_t part = piece / splits, split = piece % splits;
    const int64_t begin = split * tiles / splits, last = (split + 1) * tiles / splits - 1;
    const int64_t end = std::min(parts.groups, (part + 1) * parts.groups_per_part);
    for (int64_t group = part * parts.groups_per_part; group < end; ++group) {
      for (int64_t tile = begin; tile <= last; ++tile) {
        const int64_t row = first(tile);
        const int rows = int(first(tile + 1) - row);
        // The last tile has its group at hand: the next group arrives meanwhile.
        const int64_t ahead = tile == last && group + 1 < end ? size * int64_t(sizeof *packed) : kAhead;
        multiply_group<E, true>(
            rows, {packed + row * row_size, 0, product.data() + group * size, product.weight.inputs, ahead, sums});
        sink(part, start + row, rows, group, sums);
      }
    }
  });
}

template <class E, class Sink>
void multiply_all(const Product<E>& product, Sink& sink) {
  if (product.rows <= kTileRows) return multiply_few(product, sink);
  const int64_t row_bytes = product.steps() * 4;
  const int64_t most = std::max<int64_t>(kTileRows, kPackedBytes / row_bytes / kTileRows * kTileRows);
  const int64_t blocks = (product.rows + most - 1) / most;
  auto* packed = static_cast<typename E::Element*>(scratch(std::min(product.rows, most) * row_bytes));
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t start = block * product.rows / blocks, end = (block + 1) * product.rows / blocks;
    multiply_block(product, start, end - start, packed, sink);
  }
}

}  // namespace TPT_ISA
}  // namespace tapetum
