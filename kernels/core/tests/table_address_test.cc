// Which addresses a table takes, and that it checks all of them first.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "mxrec/address.h"
#include "mxrec/table.h"
#include "tests/table_utils.h"
#include "tests/testing.h"

namespace mxrec {
namespace testing {
namespace {

enum class Operation { kGather, kSgd, kLazyAdam };

Status Do(Operation operation, Table* table,
          const std::vector<Address>& addresses, const Parallel& parallel) {
  std::vector<float> rows(addresses.size() * table->options().dim, 1.0f);
  switch (operation) {
    case Operation::kGather:
      return table->Gather(addresses, nullptr, rows.data(), parallel);
    case Operation::kSgd:
      return table->ApplySgd(addresses, rows.data(), SgdParams{0.5f, 0},
                             parallel);
    case Operation::kLazyAdam:
      return table->ApplyLazyAdam(addresses, rows.data(), LazyAdamParams{},
                                  parallel);
  }
  return Status::Internal("unreachable");
}

TEST(Address_FieldsComeBack) {
  for (uint32_t nonce : {1u, 2u, 77u, kMaxNonce}) {
    for (uint32_t generation : {0u, 1u, 1000u, kMaxGeneration}) {
      for (RowIndex row : {0u, 1u, 0x80000000u, 0xFFFFFFFFu}) {
        const Address a = MakeAddress(nonce, generation, row);
        EXPECT_LT(0, a);
        EXPECT_EQ(NonceOf(a), nonce);
        EXPECT_EQ(GenerationOf(a), generation);
        EXPECT_EQ(RowOf(a), row);
      }
    }
  }
  EXPECT_LT(kMaxNonce, NonceOf(-1));
  EXPECT_LT(kMaxNonce, NonceOf(std::numeric_limits<Address>::min()));
}

TEST(Address_TablesHaveTheirOwnNonce) {
  std::set<uint32_t> nonces;
  std::vector<std::shared_ptr<Table>> tables;
  for (int i = 0; i < 50; ++i) {
    tables.push_back(MakeTable(Options("t", 2)));
    nonces.insert(NonceOf(FindOrInsert(tables.back().get(), {1})[0]));
  }
  EXPECT_EQ(nonces.size(), 50);
}

TEST(Address_IllegalOnesAreRefusedBeforeAnythingIsWritten) {
  const auto table = MakeTable(Options("my_table", 5));
  const auto other = MakeTable(Options("other_table", 5));
  const std::vector<Key> keys = KeyRange(0, 300);
  const std::vector<Address> good = FindOrInsert(table.get(), keys);
  const Address foreign = FindOrInsert(other.get(), keys)[7];
  const Address reserved = LookAhead(table.get(), {5000}, true)[0];
  ASSERT_TRUE(reserved > 0);
  const Address a = good[0];
  RowIndex last = RowOf(reserved);
  for (Address address : good) last = std::max(last, RowOf(address));
  const Address bad[] = {
      -1,
      std::numeric_limits<Address>::min(),
      std::numeric_limits<Address>::max(),
      -a,
      1,
      foreign,
      reserved,
      MakeAddress(NonceOf(a), GenerationOf(a), last + 1),
      MakeAddress(NonceOf(a), GenerationOf(a), 0xFFFFFFFFu),
      MakeAddress(NonceOf(a), GenerationOf(a),
                  static_cast<RowIndex>(table->capacity())),
      MakeAddress(NonceOf(a), GenerationOf(a) + 1, RowOf(a)),
      MakeAddress(NonceOf(a) % kMaxNonce + 1, GenerationOf(a), RowOf(a)),
      static_cast<Address>(static_cast<uint64_t>(a) | (uint64_t{1} << 63)),
  };
  for (int round = 0; round < 2; ++round) {
    const auto before = Export(*table);
    const int64_t updates = table->update_count();
    for (Address value : bad) {
      for (int64_t position : {0, 150, 299}) {
        for (const Parallel* parallel : {&Serial(), &FourThreads()}) {
          std::vector<Address> addresses = good;
          addresses[position] = value;
          for (Operation operation :
               {Operation::kGather, Operation::kSgd, Operation::kLazyAdam}) {
            EXPECT_ERROR(Do(operation, table.get(), addresses, *parallel),
                         Code::kInvalidArgument, "my_table");
            EXPECT_ERROR(Do(operation, table.get(), addresses, *parallel),
                         Code::kInvalidArgument, std::to_string(value));
            EXPECT_ERROR(Do(operation, table.get(), addresses, *parallel),
                         Code::kInvalidArgument, std::to_string(position));
          }
        }
      }
    }
    const auto after = Export(*table);
    EXPECT_EQ(table->update_count(), updates);
    EXPECT_EQ(after.size(), before.size());
    for (const auto& [key, row] : after) {
      // A refused first LazyAdam may or may not have added its slots.
      const std::vector<float>& old = before.at(key).row;
      ASSERT_TRUE(row.row.size() >= old.size());
      EXPECT_TRUE(std::equal(old.begin(), old.end(), row.row.begin()));
    }
    // The second round is with slots and moments.
    ASSERT_OK(Do(Operation::kLazyAdam, table.get(), good, Serial()));
  }
}

TEST(Address_TheFirstIllegalOneIsNamed) {
  const auto table = MakeTable(Options("t", 2));
  std::vector<Address> addresses(100000, kNoRow);
  addresses[71234] = -71;
  addresses[99999] = -99;
  for (int64_t first : {71234, 40000, 3}) {
    addresses[first] = -12345;
    for (int i = 0; i < 20; ++i) {
      for (Operation operation :
           {Operation::kGather, Operation::kSgd, Operation::kLazyAdam}) {
        EXPECT_ERROR(Do(operation, table.get(), addresses, FourThreads()),
                     Code::kInvalidArgument, std::to_string(first));
        EXPECT_ERROR(Do(operation, table.get(), addresses, FourThreads()),
                     Code::kInvalidArgument, "-12345");
      }
    }
  }
}

TEST(Address_EmptyTableHasNoAddresses) {
  const auto table = MakeTable(Options("t", 2));
  const auto probe = MakeTable(Options("t", 2));
  const uint32_t nonce = NonceOf(FindOrInsert(probe.get(), {1})[0]);
  // One of these is the nonce of the empty table, which was made just before.
  for (uint32_t n = nonce > 100 ? nonce - 100 : 1; n <= nonce; ++n) {
    EXPECT_ERROR(
        Do(Operation::kGather, table.get(), {MakeAddress(n, 0, 0)}, Serial()),
        Code::kInvalidArgument, "t");
  }
  EXPECT_OK(Do(Operation::kGather, table.get(), {kNoRow}, Serial()));
}

TEST(Address_ZeroIsNoRow) {
  const auto table = MakeTable(Options("t", 3));
  const std::vector<Address> a = FindOrInsert(table.get(), {10, 20});
  const auto before = Export(*table);
  std::vector<float> gradients(4 * 3, 1e9f);
  EXPECT_OK(table->ApplySgd(std::vector<Address>(4, kNoRow), gradients.data(),
                            SgdParams{1, 1}, FourThreads()));
  EXPECT_TRUE(SameBits(before, Export(*table)));
  EXPECT_OK(table->ApplyLazyAdam(std::vector<Address>(4, kNoRow),
                                 gradients.data(), {}, FourThreads()));
  for (const auto& [key, row] : Export(*table)) {
    for (int c = 0; c < 9; ++c) {
      EXPECT_EQ(row.row[c], c < 3 ? before.at(key).row[c] : 0.0f);
    }
  }
  const float default_row[] = {7, 8, 9};
  const std::vector<float> out =
      Gather(*table, {0, a[0], 0, a[1]}, default_row);
  for (int c = 0; c < 3; ++c) {
    EXPECT_EQ(out[c], default_row[c]);
    EXPECT_EQ(out[3 + c], before.at(10).row[c]);
    EXPECT_EQ(out[6 + c], default_row[c]);
    EXPECT_EQ(out[9 + c], before.at(20).row[c]);
  }
  for (float x : Gather(*table, {0, 0})) EXPECT_EQ(x, 0.0f);
}

}  // namespace
}  // namespace testing
}  // namespace mxrec
