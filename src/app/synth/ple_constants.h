// Constants of the n-gram embedding's hash.
#pragma once

#include <cstdint>
#include <vector>

namespace switchyard::app {

// Odd multipliers for `count` token ids of an n-gram. Their products with ids below `vocab_size`
// stay below 2^63.
//
// Source: the values in the metadata of the released model; splitmix64 from seed 1234.
std::vector<uint64_t> PleMultipliers(int count, int vocab_size);

// The first `count` primes that are not below `start`: rows of each head.
std::vector<uint64_t> PrimesFrom(uint64_t start, int count);

// Sums of what is before each element: the first row of each head.
std::vector<uint64_t> PrefixSums(const std::vector<uint64_t>& values);

// Rows of the table: the sum, padded to a multiple of 128.
int64_t PleTableRows(const std::vector<uint64_t>& head_vocab_sizes);

}  // namespace switchyard::app
