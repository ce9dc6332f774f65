// Walks the tiles of a product and gives each to a sink, which makes outputs of its sums.
//
// Few rows are read where they are. Many are packed first, since their strides are often powers of two, which share one
// set of the cache; then a group of columns stays in the second cache while all packed rows pass by.
#pragma once
#include <algorithm>

#include "gemm_scratch.h"
#include "gemm_tile.h"
#include "pool.h"

namespace tapetum {
namespace TPT_ISA {

constexpr int64_t kPartBytes = 128 << 10;   // of the weight, at least, that a thread takes at once for few rows
constexpr int64_t kPackedBytes = 4 << 20;   // of packed rows, at most
constexpr int64_t kPartsPerThread = 4;      // at least, where there are that many

// Columns are taken in parts of whole groups.
struct Parts {
  int64_t groups, groups_per_part, count;
};

inline Parts parts_of(const Weight& weight, int64_t rows) {
  const int64_t groups = num_groups(weight.outputs, weight.activation);
  const int64_t bytes = num_steps(weight.inputs, weight.dtype) * kGroupColumns * 4;
  int64_t width = 1;
  if (rows <= kTileRows) {
    const int64_t unit = std::max(1, wide(int(rows)) / kGroupVectors);
    width = unit * std::max<int64_t>(1, kPartBytes / (unit * bytes));
    width = std::min(width, (groups + num_threads() - 1) / num_threads());
  } else {
    width = std::clamp<int64_t>(groups / (num_threads() * 64), 1, 8);
  }
  return {groups, width, (groups + width - 1) / width};
}

template <class E>
struct Product {
  const Weight& weight;
  const typename E::Element* x;
  int64_t ldx, rows;
  Parts parts;

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

// sink(part, row, rows, group, sums, lds): the sums of one group of columns.
template <class E, class Sink>
void multiply_few(const Product<E>& product, Sink& sink) {
  const int rows = int(product.rows);
  const auto* data = static_cast<const typename E::Element*>(product.weight.data);
  const int64_t size = product.group_size(), wide_groups = std::max(1, wide(rows) / kGroupVectors);
  parallel_for(product.parts.count, [&](int64_t part) {
    alignas(64) float sums[kTileRows * kMostColumns];
    const int64_t end = std::min(product.parts.groups, (part + 1) * product.parts.groups_per_part);
    int64_t group = part * product.parts.groups_per_part;
    while (group < end) {
      const bool is_wide = end - group >= wide_groups;
      const int64_t count = is_wide ? wide_groups : 1, columns = count * kGroupColumns;
      const int vectors = is_wide ? wide(rows) : kNarrow;
      const auto run = is_wide ? wide_tile<E>(rows) : narrow_tile<E, false>(rows);
      for (int64_t column = 0; column < columns; column += vectors * W)
        run({product.x, product.ldx, data + group * size + column * E::kPerWord, size, product.weight.inputs,
             sums + column, columns});
      for (int64_t i = 0; i < count; ++i) sink(part, 0, rows, group + i, sums + i * kGroupColumns, columns);
      group += count;
    }
  });
}

// Rows [start, start + count), which fit in `packed`, in tiles of nearly equal heights.
template <class E, class Sink>
void multiply_block(const Product<E>& product, int64_t start, int64_t count, typename E::Element* packed,
                    Sink& sink) {
  const auto* data = static_cast<const typename E::Element*>(product.weight.data);
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
    const int64_t end = std::min(parts.groups, (part + 1) * parts.groups_per_part);
    for (int64_t group = part * parts.groups_per_part; group < end; ++group) {
      for (int64_t tile = split * tiles / splits; tile < (split + 1) * tiles / splits; ++tile) {
        const int64_t row = first(tile);
        const int rows = int(first(tile + 1) - row);
        const auto run = narrow_tile<E, true>(rows);
        for (int64_t column = 0; column < kGroupColumns; column += kNarrow * W)
          run({packed + row * row_size, 0, data + group * size + column * E::kPerWord, size, product.weight.inputs,
               sums + column, kGroupColumns});
        sink(part, start + row, rows, group, sums, kGroupColumns);
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
