// Files of tables: what is saved comes back, and what is damaged does not.
#include "mxrec/checkpoint.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "mxrec/saving.h"
#include "src/checkpoint_io.h"
#include "src/table_file.h"
#include "tests/table_utils.h"
#include "tests/temporary_directory.h"
#include "tests/testing.h"

namespace mxrec {
namespace testing {
namespace {

namespace fs = std::filesystem;

SaveRequest SaveTo(const std::string& prefix) {
  SaveRequest request;
  request.prefix = prefix;
  return request;
}

SavedTable Save(Table* table, const std::string& prefix) {
  SavedTable saved;
  EXPECT_OK(table->Save(SaveTo(prefix), &saved));
  return saved;
}

Status Restore(Table* table, const std::string& prefix, const SavedTable& saved,
               RestoreReport* report = nullptr) {
  RestoreRequest request;
  request.prefix = prefix;
  // As a checkpoint keeps it.
  const Status status =
      SavedTable::Decode(saved.Encode(), prefix, &request.saved);
  if (!status.ok()) return status;
  RestoreReport ignored;
  return table->Restore(request, report == nullptr ? &ignored : report);
}

void Train(Table* table, const std::vector<Key>& keys, float rate) {
  const std::vector<Address> addresses = FindOrInsert(table, keys);
  Rng rng(keys.size());
  const std::vector<float> gradients = RandomGradients(
      &rng, static_cast<int64_t>(keys.size()), table->options().dim);
  LazyAdamParams params;
  params.learning_rate = rate;
  ASSERT_OK(
      table->ApplyLazyAdam(addresses, gradients.data(), params, Serial()));
}

std::vector<char> ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void WriteFile(const std::string& path, const std::vector<char>& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

TEST(Crc32c_IsTheKnownFunction) {
  // RFC 3720, B.4.
  EXPECT_EQ(Crc32c(0, "123456789", 9), 0xE3069283u);
  const std::vector<char> zeros(32, 0);
  EXPECT_EQ(Crc32c(0, zeros.data(), 32), 0x8A9136AAu);
  EXPECT_EQ(Crc32c(Crc32c(0, "1234", 4), "56789", 5), 0xE3069283u);
}

// Long ones are computed in lanes; bytes one by one are not.
TEST(Crc32c_IsTheSameInPieces) {
  Rng rng(3);
  std::vector<uint8_t> bytes(40000);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(rng());
  for (const size_t n :
       {0, 1, 7, 2047, 6143, 6144, 6145, 12288, 20000, 40000}) {
    uint32_t crc = 99;
    for (size_t i = 0; i < n; ++i) crc = Crc32c(crc, &bytes[i], 1);
    EXPECT_EQ(Crc32c(99, bytes.data(), n), crc);
  }
}

TEST(Manifest_ComesBackFromItsText) {
  Manifest manifest;
  manifest.table = "user.table_1";
  manifest.dim = 7;
  manifest.optimizer = "odd % name, with = and\nline end";
  manifest.slot_initials = {0.1f, -1e-30f};
  manifest.steps = 12345678901;
  manifest.content = "0123456789abcdef";
  manifest.is_delta = true;
  manifest.rows = 5;
  manifest.columns[BlockKind::kRows] = {{"keys", "int64", 1},
                                        {"rows", "float32", 21}};
  manifest.columns[BlockKind::kEvicted] = {{"keys", "int64", 1}};
  manifest.base = {{".data-01234-of-m0000", "fedcba9876543210", 77}};
  manifest.notes["a b"] = "c,d";
  Manifest read;
  ASSERT_OK(Manifest::Decode(manifest.Encode(), "x", &read));
  EXPECT_EQ(read.Encode(), manifest.Encode());
  EXPECT_EQ(read.optimizer, manifest.optimizer);
  EXPECT_EQ(read.slot_initials[1], -1e-30f);
  EXPECT_EQ(read.columns[BlockKind::kRows][1].width, 21);
  EXPECT_EQ(read.base[0].manifest_crc, 77u);
  EXPECT_EQ(read.notes["a b"], "c,d");
}

TEST(Manifest_RefusesWhatItCannotRead) {
  Manifest manifest;
  EXPECT_EQ(Manifest::Decode("", "f", &manifest).code(), Code::kDataLoss);
  const Status later =
      Manifest::Decode("mxrec-table=2\ndim=3\n", "f", &manifest);
  EXPECT_EQ(later.code(), Code::kDataLoss);
  EXPECT_TRUE(later.message().find("version 2") != std::string::npos);
  EXPECT_EQ(Manifest::Decode("mxrec-table=1\ndim=-3\n", "f", &manifest).code(),
            Code::kDataLoss);
}

TEST(Checkpoint_RestoresRowsSlotsCountsAndSteps) {
  const TemporaryDirectory directory;
  for (const bool counts : {false, true}) {
    TableOptions options = Options("t", 5);
    options.record_counts = counts;
    const auto table = MakeTable(options);
    Train(table.get(), KeyRange(-50000, 100000), 0.1f);
    Train(table.get(), KeyRange(-7, 14), 0.2f);
    LookAhead(table.get(), {1000000}, true);  // reserved: not saved
    const auto before = Export(*table);
    const SavedTable saved = Save(table.get(), directory / "model-1");
    EXPECT_EQ(saved.manifest.rows, 100000);
    EXPECT_EQ(saved.manifest.steps, 2);
    EXPECT_TRUE(SameBits(Export(*table), before));

    const auto fresh = MakeTable(options);
    RestoreReport report;
    ASSERT_OK(Restore(fresh.get(), directory / "model-1", saved, &report));
    EXPECT_EQ(report.keys, 100000);
    EXPECT_EQ(fresh->size(), 100000);
    EXPECT_EQ(fresh->update_count(), 2);
    EXPECT_TRUE(SameBits(Export(*fresh), before));
    // Training goes on as it would have.
    Train(table.get(), KeyRange(49990, 30), 0.3f);
    Train(fresh.get(), KeyRange(49990, 30), 0.3f);
    EXPECT_TRUE(SameBits(Export(*fresh), Export(*table)));
    // A table in use goes back, too.
    ASSERT_OK(Restore(table.get(), directory / "model-1", saved));
    EXPECT_TRUE(SameBits(Export(*table), before));
  }
}

TEST(Checkpoint_AnEmptyTableIsSaved) {
  const TemporaryDirectory directory;
  const auto table = MakeTable(Options("t", 3));
  const SavedTable saved = Save(table.get(), directory / "m");
  FindOrInsert(table.get(), {1, 2});
  ASSERT_OK(Restore(table.get(), directory / "m", saved));
  EXPECT_EQ(table->size(), 0);
}

TEST(Checkpoint_AddressesOfBeforeARestoreAreIllegal) {
  const TemporaryDirectory directory;
  const auto table = MakeTable(Options("t", 3));
  const auto addresses = FindOrInsert(table.get(), {1, 2});
  const SavedTable saved = Save(table.get(), directory / "m");
  ASSERT_OK(Restore(table.get(), directory / "m", saved));
  std::vector<float> out(6);
  const Status status = table->Gather(addresses, nullptr, out.data(), Serial());
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  // A stale hint costs time only.
  std::vector<Address> found(2);
  ASSERT_OK(table->Find(std::vector<Key>{1, 2}, addresses, found, Serial()));
  EXPECT_TRUE(
      SameBits(Gather(*table, found), Gather(*table, Find(*table, {1, 2}))));
}

TEST(Checkpoint_PaddingKeysAreFrozenAfterARestore) {
  const TemporaryDirectory directory;
  TableOptions options = Options("t", 3);
  options.padding_keys = {2};
  const auto table = MakeTable(options);
  Train(table.get(), {1, 2}, 0.1f);
  const SavedTable saved = Save(table.get(), directory / "m");
  const auto fresh = MakeTable(options);
  ASSERT_OK(Restore(fresh.get(), directory / "m", saved));
  Train(fresh.get(), {1, 2}, 0.1f);
  EXPECT_TRUE(
      SameBits(Gather(*fresh, Find(*fresh, {2})), InitialRow(*fresh, 2)));
  EXPECT_FALSE(
      SameBits(Gather(*fresh, Find(*fresh, {1})), InitialRow(*fresh, 1)));
}

TEST(Checkpoint_WithoutSlotsTheyBeginAnew) {
  const TemporaryDirectory directory;
  const auto table = MakeTable(Options("t", 3));
  Train(table.get(), {1, 2}, 0.1f);
  const SavedTable saved = Save(table.get(), directory / "m");
  const auto rows = Gather(*table, Find(*table, {1, 2}));
  const auto other = MakeTable(Options("other", 3));
  RestoreRequest request;
  request.prefix = directory / "m";
  request.saved = saved;
  request.with_slots = false;
  RestoreReport report;
  ASSERT_OK(other->Restore(request, &report));
  EXPECT_EQ(other->stride(), 3);
  EXPECT_TRUE(SameBits(Gather(*other, Find(*other, {1, 2})), rows));
  AdagradParams adagrad;
  const std::vector<float> gradients(6, 1.0f);
  EXPECT_OK(other->ApplyAdagrad(Find(*other, {1, 2}), gradients.data(), adagrad,
                                Serial()));
  // Into a table with slots of another optimizer: with them it is refused.
  request.with_slots = true;
  const Status status = other->Restore(request, &report);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_TRUE(status.message().find("LazyAdam") != std::string::npos);
  request.with_slots = false;
  EXPECT_OK(other->Restore(request, &report));
  EXPECT_EQ(Export(*other)[1].row[3], adagrad.initial_accumulator_value);
}

TEST(Checkpoint_SlotsOfAnOptimizerToComeAreExpected) {
  const TemporaryDirectory directory;
  const auto table = MakeTable(Options("t", 3));
  Train(table.get(), {1, 2}, 0.1f);
  RestoreRequest request;
  request.prefix = directory / "m";
  request.saved = Save(table.get(), directory / "m");
  request.slots = {"Adagrad", {0.9f}};
  const auto fresh = MakeTable(Options("t", 3));
  RestoreReport report;
  const Status status = fresh->Restore(request, &report);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_TRUE(status.message().find("with slots of LazyAdam") !=
              std::string::npos);
  EXPECT_TRUE(status.message().find("trained here with slots of Adagrad") !=
              std::string::npos);
  EXPECT_EQ(fresh->size(), 0);
  request.with_slots = false;
  ASSERT_OK(fresh->Restore(request, &report));
  EXPECT_EQ(fresh->stride(), 3);
  request.with_slots = true;
  request.slots = {"LazyAdam", {0, 0}};
  ASSERT_OK(fresh->Restore(request, &report));
  EXPECT_TRUE(SameBits(Export(*fresh), Export(*table)));
}

TEST(Checkpoint_PartsDivideTheKeys) {
  const TemporaryDirectory directory;
  const auto table = MakeTable(Options("t", 3));
  Train(table.get(), KeyRange(0, 1000), 0.1f);
  const SavedTable saved = Save(table.get(), directory / "m");
  std::map<Key, ExportedRow> all;
  for (int part = 0; part < 3; ++part) {
    const auto one = MakeTable(Options("t", 3));
    RestoreRequest request;
    request.prefix = directory / "m";
    request.saved = saved;
    request.part = part;
    request.parts = 3;
    RestoreReport report;
    ASSERT_OK(one->Restore(request, &report));
    EXPECT_EQ(report.keys + report.skipped, 1000);
    EXPECT_LT(200, report.keys);
    for (const auto& row : Export(*one)) {
      EXPECT_EQ(PartOf(row.first, 3), part);
      EXPECT_TRUE(all.insert(row).second);
    }
  }
  EXPECT_TRUE(SameBits(all, Export(*table)));
}

// Rows, as an eviction that has to choose meets them.
std::vector<Key> KeysByRow(const Table& table,
                           const std::map<Key, ExportedRow>& exported) {
  std::map<RowIndex, Key> by_row;
  for (const auto& entry : exported) {
    by_row[RowOf(Find(table, {entry.first})[0])] = entry.first;
  }
  std::vector<Key> keys;
  for (const auto& entry : by_row) keys.push_back(entry.second);
  return keys;
}

std::set<std::vector<int64_t>> CandidatesOf(const Table& table) {
  std::set<std::vector<int64_t>> found;
  EXPECT_OK(table.ExportCandidates(100, [&](const CandidateChunk& chunk) {
    for (int64_t i = 0; i < chunk.keys.size(); ++i) {
      found.insert({chunk.keys[i], chunk.counts[i], chunk.times[i]});
    }
    return Status::Ok();
  }));
  return found;
}

// Whichever block comes first.
TEST(Checkpoint_AKeyWithARowIsNoCandidate) {
  const TemporaryDirectory directory;
  for (const bool rows_first : {true, false}) {
    Manifest manifest;
    manifest.table = "t";
    manifest.dim = 2;
    manifest.size = 1;
    manifest.columns[BlockKind::kRows] = {{"keys", "int64", 1},
                                          {"rows", "float32", 2}};
    manifest.columns[BlockKind::kHistory] = {
        {"keys", "int64", 1}, {"counts", "int64", 1}, {"times", "int64", 1}};
    const std::string prefix = directory / (rows_first ? "rows" : "history");
    ASSERT_OK(PrepareFile(prefix, 0, &manifest));
    std::unique_ptr<TableFileWriter> writer;
    ASSERT_OK(TableFileWriter::Create(prefix, 0, manifest, 1 << 20, &writer));
    BlockBuffer rows(manifest.columns[BlockKind::kRows], 1);
    rows.kind = BlockKind::kRows;
    rows.size = 1;
    rows.column<Key>(0)[0] = 7;
    rows.column<float>(1)[0] = 1.5f;
    rows.column<float>(1)[1] = 2.5f;
    BlockBuffer history(manifest.columns[BlockKind::kHistory], 2);
    history.kind = BlockKind::kHistory;
    history.size = 2;
    for (int i = 0; i < 2; ++i) {
      history.column<Key>(0)[i] = 7 + i;
      history.column<int64_t>(1)[i] = 1;
      history.column<int64_t>(2)[i] = 3;
    }
    ASSERT_OK(writer->WriteBlock(rows_first ? &rows : &history));
    ASSERT_OK(writer->WriteBlock(rows_first ? &history : &rows));
    SavedTable saved;
    saved.files.resize(1);
    ASSERT_OK(writer->Finish(&manifest, &saved.files[0]));
    saved.manifest = manifest;
    TableOptions options = Options("t", 2);
    options.admission.access_threshold = 2;
    const auto table = MakeTable(options);
    ASSERT_OK(Restore(table.get(), prefix, saved));
    EXPECT_EQ(table->size(), 1);
    EXPECT_TRUE(SameBits(Gather(*table, Find(*table, {7})), {1.5f, 2.5f}));
    EXPECT_TRUE(CandidatesOf(*table) ==
                (std::set<std::vector<int64_t>>{{8, 1, 3}}));
  }
}

// A base of many blocks, of rows and of candidates, and a delta; and what was
// in the table at both.
struct LargeTable {
  static constexpr int kDim = 64;
  static constexpr int64_t kKeys = 16000;

  explicit LargeTable(const TemporaryDirectory& directory)
      : options(Options("t", kDim)) {
    options.admission.access_threshold = 2;
    options.admission.record_times = true;
    options.padding_keys = {5, 11000};
    table = MakeTable(options);
    See(KeyRange(0, kKeys + 500), 100);
    See(KeyRange(0, kKeys), 200);
    Update(KeyRange(0, kKeys));
    states.push_back(Export(*table));
    Save(directory / "m-0", SaveKind::kBase);
    See(KeyRange(9000, 3000), 300);
    See(KeyRange(kKeys, 100), 300);
    Update(KeyRange(9000, 3000));
    {
      // Keys of before are evicted, but for those of the last two steps.
      Evicted evicted;
      EXPECT_OK(table->Evict(100, &evicted));
      EXPECT_LT(0, evicted.keys);
    }
    See(KeyRange(100, 50), 400);
    states.push_back(Export(*table));
    Save(directory / "m-1", SaveKind::kDelta);
    candidates = CandidatesOf(*table);
  }

  void See(const std::vector<Key>& keys, int64_t time) {
    const auto step = BeginStep(table.get());
    std::vector<Address> addresses(keys.size());
    const std::vector<int64_t> times = {time};
    Occurrences seen;
    seen.times = times;
    ASSERT_OK(table->FindOrAdmit(keys, {}, seen, addresses, Serial()));
  }
  void Update(const std::vector<Key>& keys) {
    const auto step = BeginStep(table.get());
    Rng rng(keys.size());
    const auto gradients =
        RandomGradients(&rng, static_cast<int64_t>(keys.size()), kDim);
    ASSERT_OK(table->ApplyLazyAdam(Find(*table, keys), gradients.data(), {},
                                   Serial()));
  }
  void Save(const std::string& prefix, SaveKind kind) {
    SaveRequest request = SaveTo(prefix);
    request.kind = kind;
    SavedTable one;
    ASSERT_OK(table->Save(request, &one));
    table->CommitSave(prefix);
    saved.push_back(one);
  }

  TableOptions options;
  std::shared_ptr<Table> table;
  std::vector<SavedTable> saved;
  std::vector<std::map<Key, ExportedRow>> states;
  std::set<std::vector<int64_t>> candidates;
};

TEST(Checkpoint_ThreadsDoNotChangeWhatIsRestored) {
  const TemporaryDirectory directory;
  const LargeTable large(directory);
  EXPECT_LT(20, large.saved[0].manifest.blocks);
  EXPECT_TRUE(large.saved[1].manifest.is_delta);
  for (const int last : {0, 1}) {
    for (const bool with_slots : {true, false}) {
      for (const int parts : {1, 2}) {
        RestoreRequest request;
        request.prefix = directory / ("m-" + std::to_string(last));
        request.saved = large.saved[last];
        request.with_slots = with_slots;
        request.parts = parts;
        std::vector<Key> by_row;
        std::set<std::vector<int64_t>> candidates;
        for (const int threads : {1, 2, 5}) {
          request.threads = threads;
          const auto copy = MakeTable(large.options);
          RestoreReport report;
          ASSERT_OK(copy->Restore(request, &report));
          const auto exported = Export(*copy);
          EXPECT_EQ(report.keys, copy->size());
          EXPECT_EQ(report.keys, static_cast<int64_t>(exported.size()));
          if (threads == 1) {
            by_row = KeysByRow(*copy, exported);
            candidates = CandidatesOf(*copy);
          }
          EXPECT_TRUE(KeysByRow(*copy, exported) == by_row);
          EXPECT_TRUE(CandidatesOf(*copy) == candidates);
          if (parts == 1 && last == 1) {
            EXPECT_TRUE(candidates == large.candidates);
          }
          std::map<Key, ExportedRow> expected = large.states[last];
          for (auto entry = expected.begin(); entry != expected.end();) {
            if (!with_slots) entry->second.row.resize(LargeTable::kDim);
            const bool is_here = parts == 1 || PartOf(entry->first, parts) == 0;
            entry = is_here ? std::next(entry) : expected.erase(entry);
          }
          EXPECT_TRUE(SameBits(exported, expected));
          for (const auto& entry : expected) {
            EXPECT_EQ(exported.at(entry.first).time, entry.second.time);
          }
        }
      }
    }
  }
}

TEST(Checkpoint_ThreadsFillTablesOfFixedCapacity) {
  const TemporaryDirectory directory;
  const LargeTable large(directory);
  TableOptions options = large.options;
  options.fixed_capacity = LargeTable::kKeys + 100;
  for (const int threads : {1, 4}) {
    const auto fixed = MakeTable(options);
    constexpr int kStride = 3 * LargeTable::kDim;
    std::vector<float> rows(options.fixed_capacity * kStride);
    RestoreRequest request;
    request.prefix = directory / "m-0";
    request.saved = large.saved[0];
    request.threads = threads;
    request.slots = {"LazyAdam", {0, 0}};
    request.write_rows = [&rows](Span<const RowIndex> offsets,
                                 const float* in) {
      for (int64_t i = 0; i < offsets.size(); ++i) {
        std::memcpy(rows.data() + int64_t{offsets[i]} * kStride,
                    in + i * kStride, kStride * sizeof(float));
      }
    };
    RestoreReport report;
    ASSERT_OK(fixed->Restore(request, &report));
    EXPECT_EQ(report.keys, LargeTable::kKeys);
    for (const auto& entry : large.states[0]) {
      const float* const row =
          rows.data() +
          int64_t{RowOf(Find(*fixed, {entry.first})[0])} * kStride;
      EXPECT_TRUE(SameBits({row, row + kStride}, entry.second.row));
    }
  }
}

// Whichever thread meets what, the error is that of the first bad block.
TEST(Checkpoint_ThreadsReportTheFirstDamage) {
  const TemporaryDirectory directory;
  const LargeTable large(directory);
  // Files are read in place first, and then in turn.
  for (const int last : {0, 1}) {
    const SavedTable& saved = large.saved[last];
    const std::string prefix = directory / ("m-" + std::to_string(last));
    const std::string path = prefix + saved.files[0].suffix;
    const std::vector<char> good = ReadFile(path);
    const int64_t blocks = large.saved[0].manifest.blocks;
    for (const int64_t first_bad : {int64_t{1}, blocks / 2, blocks - 9}) {
      std::vector<char> bad = good;
      size_t at = sizeof(FileHeader);
      size_t damaged = 0;
      for (int64_t block = 0; block < blocks; ++block) {
        BlockHeader header;
        std::memcpy(&header, good.data() + at, sizeof(header));
        if (block == first_bad) damaged = at;
        if (block >= first_bad) bad[at + sizeof(header) + 7] ^= 1;
        at += sizeof(header) + header.bytes;
      }
      // Another file: hard links share what is written.
      unlink(path.c_str());
      WriteFile(path, bad);
      for (const int threads : {1, 2, 6}) {
        const auto copy = MakeTable(large.options);
        RestoreRequest request;
        request.prefix = prefix;
        request.saved = saved;
        request.threads = threads;
        RestoreReport report;
        const Status status = copy->Restore(request, &report);
        EXPECT_EQ(status.code(), Code::kDataLoss);
        EXPECT_TRUE(status.message().find(path) != std::string::npos);
        EXPECT_TRUE(
            status.message().find("block at byte " + std::to_string(damaged)) !=
            std::string::npos);
        EXPECT_EQ(copy->size(), 0);
        EXPECT_EQ(CandidatesOf(*copy).size(), 0);
      }
    }
    unlink(path.c_str());
    WriteFile(path, good);
  }
}

TEST(Checkpoint_AnotherDimOrKeyDtypeIsRefusedByName) {
  const TemporaryDirectory directory;
  const auto table = MakeTable(Options("t", 3));
  FindOrInsert(table.get(), {1});
  const SavedTable saved = Save(table.get(), directory / "m");
  const auto wide = MakeTable(Options("wide", 4));
  FindOrInsert(wide.get(), {5});
  const Status status = Restore(wide.get(), directory / "m", saved);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_TRUE(status.message().find("'wide'") != std::string::npos);
  EXPECT_TRUE(status.message().find("dim 3, expected dim 4") !=
              std::string::npos);
  EXPECT_EQ(wide->size(), 1);
  RestoreRequest request;
  request.prefix = directory / "m";
  request.saved = saved;
  request.key_dtype = "int32";
  RestoreReport report;
  EXPECT_EQ(table->Restore(request, &report).code(), Code::kInvalidArgument);
}

// Every single bit of a small file matters.
TEST(Checkpoint_EveryFlippedBitIsFound) {
  const TemporaryDirectory directory;
  const auto table = MakeTable(Options("t", 2));
  Train(table.get(), {1, -2, 3}, 0.1f);
  const SavedTable saved = Save(table.get(), directory / "m");
  const std::string path = directory / ("m" + saved.files.back().suffix);
  const std::vector<char> good = ReadFile(path);
  const auto before = Export(*table);
  const auto empty = MakeTable(Options("t", 2));
  for (size_t byte = 0; byte < good.size(); ++byte) {
    std::vector<char> bad = good;
    bad[byte] = static_cast<char>(bad[byte] ^ (1 << (byte % 8)));
    WriteFile(path, bad);
    for (Table* const target : {table.get(), empty.get()}) {
      const Status status = Restore(target, directory / "m", saved);
      EXPECT_EQ(status.code(), Code::kDataLoss);
      EXPECT_TRUE(status.message().find(path) != std::string::npos);
    }
  }
  EXPECT_TRUE(SameBits(Export(*table), before));
  EXPECT_EQ(empty->size(), 0);
}

TEST(Checkpoint_EveryTruncationIsFound) {
  const TemporaryDirectory directory;
  const auto table = MakeTable(Options("t", 2));
  Train(table.get(), {1, -2, 3}, 0.1f);
  const SavedTable saved = Save(table.get(), directory / "m");
  const std::string path = directory / ("m" + saved.files.back().suffix);
  const std::vector<char> good = ReadFile(path);
  const auto before = Export(*table);
  for (size_t bytes = 0; bytes < good.size(); ++bytes) {
    WriteFile(path, {good.begin(), good.begin() + bytes});
    const Status status = Restore(table.get(), directory / "m", saved);
    EXPECT_EQ(status.code(), Code::kDataLoss);
    EXPECT_TRUE(status.message().find(path) != std::string::npos);
  }
  unlink(path.c_str());
  const Status missing = Restore(table.get(), directory / "m", saved);
  EXPECT_EQ(missing.code(), Code::kDataLoss);
  EXPECT_TRUE(missing.message().find("missing") != std::string::npos);
  WriteFile(path, std::vector<char>(1000, 'x'));
  EXPECT_EQ(Restore(table.get(), directory / "m", saved).code(),
            Code::kDataLoss);
  EXPECT_TRUE(SameBits(Export(*table), before));
}

// Damage that only shows at the end must not leave half a table.
TEST(Checkpoint_DamageAtTheEndLeavesTablesAlone) {
  const TemporaryDirectory directory;
  const auto table = MakeTable(Options("t", 64));
  Train(table.get(), KeyRange(0, 20000), 0.1f);
  const SavedTable saved = Save(table.get(), directory / "m");
  const std::string path = directory / ("m" + saved.files.back().suffix);
  std::vector<char> bad = ReadFile(path);
  bad[bad.size() - 5000] ^= 1;
  WriteFile(path, bad);
  const auto before = Export(*table);
  EXPECT_EQ(Restore(table.get(), directory / "m", saved).code(),
            Code::kDataLoss);
  EXPECT_TRUE(SameBits(Export(*table), before));
  const auto empty = MakeTable(Options("t", 64));
  EXPECT_EQ(Restore(empty.get(), directory / "m", saved).code(),
            Code::kDataLoss);
  EXPECT_EQ(empty->size(), 0);
  EXPECT_EQ(empty->stride(), 64);
  Train(empty.get(), {5}, 0.1f);  // it works
}

TEST(Checkpoint_AFileOfAnotherSaveIsFound) {
  const TemporaryDirectory directory;
  const auto table = MakeTable(Options("t", 2));
  FindOrInsert(table.get(), {1});
  const SavedTable first = Save(table.get(), directory / "m1");
  FindOrInsert(table.get(), {2});
  const SavedTable second = Save(table.get(), directory / "m2");
  fs::rename(directory / ("m2" + second.files.back().suffix),
             directory / ("m1" + first.files.back().suffix));
  const Status status = Restore(table.get(), directory / "m1", first);
  EXPECT_EQ(status.code(), Code::kDataLoss);
  EXPECT_TRUE(status.message().find("is not the file") != std::string::npos);
}

TEST(Checkpoint_PlacesThatCannotBeWrittenAreNamed) {
  const TemporaryDirectory directory;
  const auto table = MakeTable(Options("t", 2));
  FindOrInsert(table.get(), {1});
  WriteFile(directory / "file", {'x'});
  SavedTable saved;
  Status status = table->Save(SaveTo(directory / "file/m"), &saved);
  EXPECT_FALSE(status.ok());
  EXPECT_TRUE(status.message().find(directory / "file") != std::string::npos);
  status = table->Save(SaveTo(directory / "no/such/m"), &saved);
  EXPECT_EQ(status.code(), Code::kNotFound);
  status = table->Save(SaveTo("s3://bucket/m"), &saved);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  // One level is made, as TensorFlow does.
  EXPECT_OK(table->Save(SaveTo(directory / "made/m"), &saved));
}

TEST(Checkpoint_AFullDiskIsAnErrorAndLeavesNothing) {
  const TemporaryDirectory directory;
  const auto table = MakeTable(Options("t", 64));
  FindOrInsert(table.get(), KeyRange(0, 20000));
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old_limit;
  getrlimit(RLIMIT_FSIZE, &old_limit);
  rlimit limit = old_limit;
  limit.rlim_cur = 1 << 20;
  setrlimit(RLIMIT_FSIZE, &limit);
  SavedTable saved;
  const Status status = table->Save(SaveTo(directory / "m"), &saved);
  setrlimit(RLIMIT_FSIZE, &old_limit);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_TRUE(status.message().find(directory / "m.data-") !=
              std::string::npos);
  EXPECT_TRUE(directory.Files().empty());
  EXPECT_EQ(table->size(), 20000);
  EXPECT_OK(table->Save(SaveTo(directory / "m"), &saved));
  Train(table.get(), KeyRange(0, 10), 0.1f);
}

// What a TensorFlow Saver does around a save of a table.
void CompleteCheckpoint(const std::string& prefix, const SavedTable& saved) {
  const std::string text = saved.Encode();
  WriteFile(prefix + ".index", {text.begin(), text.end()});
}

TEST(Checkpoint_AbandonedFilesAreRemovedByTheNextSave) {
  const TemporaryDirectory directory;
  const auto table = MakeTable(Options("t", 2));
  FindOrInsert(table.get(), {1});
  // Of writers that were killed: nobody has a lock on them.
  WriteFile(directory / "dead-1.data-00000-of-t0000", {'x'});
  WriteFile(directory / "dead-2.data-00000-of-m0000", {'x'});
  WriteFile(directory / "alive-3.data-00000-of-m0000", {'x'});
  WriteFile(directory / "alive-3.index", {'x'});
  WriteFile(directory / "other.data-00000-of-00001", {'x'});
  WriteFile(directory / "whatever", {'x'});
  // Of another table, which is saved to the same checkpoint just now.
  WriteFile(directory / "new-5.data-00000-of-m0001", {'x'});
  const FileHandle writer(
      open((directory / "busy-4.data-00000-of-t0000").c_str(), O_CREAT | O_RDWR,
           0644));
  flock(writer.get(), LOCK_EX);
  const SavedTable saved = Save(table.get(), directory / "new-5");
  EXPECT_TRUE((directory.Files() ==
               std::set<std::string>{
                   "alive-3.data-00000-of-m0000", "alive-3.index",
                   "busy-4.data-00000-of-t0000", "new-5.data-00000-of-m0001",
                   "new-5" + saved.files.back().suffix,
                   "other.data-00000-of-00001", "whatever"}));
}

size_t OpenFiles() {
  size_t n = 0;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    n += entry.exists() || true;
  }
  return n;
}

TEST(Checkpoint_FilesOfCompleteAndOfDeletedCheckpointsAreClosed) {
  const TemporaryDirectory directory;
  const auto table = MakeTable(Options("t", 2));
  FindOrInsert(table.get(), {1});
  const auto save = [&](int i, bool completes) {
    const std::string folder = directory / ("d" + std::to_string(i));
    const std::string prefix = folder + "/m";
    const SavedTable saved = Save(table.get(), prefix);
    if (completes) CompleteCheckpoint(prefix, saved);
    return prefix + saved.files.back().suffix;
  };
  save(0, true);
  const size_t before = OpenFiles();
  for (int i = 1; i < 20; ++i) save(i, true);
  EXPECT_EQ(OpenFiles(), before);
  // One that is not complete is protected from those who clean up.
  const std::string waiting = save(20, false);
  save(21, true);
  EXPECT_EQ(OpenFiles(), before + 1);
  const FileHandle file(open(waiting.c_str(), O_RDONLY));
  EXPECT_NE(flock(file.get(), LOCK_EX | LOCK_NB), 0);
  unlink(waiting.c_str());
  save(22, true);
  EXPECT_EQ(OpenFiles(), before + 1);  // `file`
}

TEST(Checkpoint_ATableThatWasFrozenIsFrozen) {
  const TemporaryDirectory directory;
  TableOptions options = Options("t", 2);
  options.admission.access_threshold = 3;
  options.record_counts = true;
  const auto table = MakeTable(options);
  int64_t in_force = 0;
  ASSERT_OK(table->SetAccessThreshold(0, &in_force));
  const SavedTable saved = Save(table.get(), directory / "m");
  RestoreReport report;
  auto other = MakeTable(options);
  ASSERT_OK(Restore(other.get(), directory / "m", saved, &report));
  EXPECT_TRUE(other->admission_state().is_frozen);
  EXPECT_TRUE(report.differences.empty());
  ASSERT_OK(table->SetAccessThreshold(3, &in_force));
  ASSERT_OK(Restore(table.get(), directory / "m", saved));
  EXPECT_TRUE(table->admission_state().is_frozen);
  // Set up in another way.
  options.admission.access_threshold = 4;
  other = MakeTable(options);
  ASSERT_OK(Restore(other.get(), directory / "m", saved, &report));
  EXPECT_FALSE(other->admission_state().is_frozen);
  EXPECT_EQ(other->admission_state().access_threshold, 4);
  EXPECT_EQ(report.differences,
            std::string("access_threshold 4 (saved with 3)"));
  // Not frozen when it was saved.
  options.admission.access_threshold = 3;
  const SavedTable thawed = Save(other.get(), directory / "n");
  ASSERT_OK(table->SetAccessThreshold(0, &in_force));
  ASSERT_OK(Restore(table.get(), directory / "n", thawed));
  EXPECT_FALSE(table->admission_state().is_frozen);
}

TEST(Checkpoint_CoefficientsAreComparedIfBothAreKnown) {
  const TemporaryDirectory directory;
  TableOptions options = Options("t", 2);
  options.admission.access_threshold = 3;
  options.admission.coefficients = {2, 5};
  const auto table = MakeTable(options);
  SavedTable saved = Save(table.get(), directory / "m");
  EXPECT_EQ(saved.manifest.notes["faae_coefficient"], std::string("2,5"));
  RestoreReport report;
  ASSERT_OK(Restore(table.get(), directory / "m", saved, &report));
  EXPECT_EQ(report.differences, std::string());
  options.admission.coefficients.clear();
  const auto other = MakeTable(options);
  ASSERT_OK(Restore(other.get(), directory / "m", saved, &report));
  EXPECT_EQ(report.differences,
            std::string("faae_coefficient 1 (saved with 2,5)"));
  // A table that counts nothing has no use for them.
  const auto plain = MakeTable(Options("t", 2));
  saved = Save(plain.get(), directory / "plain");
  EXPECT_EQ(saved.manifest.notes.count("faae_coefficient"), size_t{0});
  report = RestoreReport();
  ASSERT_OK(Restore(table.get(), directory / "plain", saved, &report));
  EXPECT_TRUE(report.differences.find("coefficient") == std::string::npos);
}

TEST(Checkpoint_WaitingKeysWithoutTimesAgeFromTheFirstEviction) {
  const TemporaryDirectory directory;
  TableOptions options = Options("t", 2);
  options.admission.access_threshold = 3;
  options.record_counts = true;
  const auto table = MakeTable(options);
  FindOrInsert(table.get(), {7});
  const SavedTable saved = Save(table.get(), directory / "m");
  options.admission.record_times = true;
  options.admission.eviction_threshold = 10;
  const auto aging = MakeTable(options);
  ASSERT_OK(Restore(aging.get(), directory / "m", saved));
  const auto see = [&](Key key, int64_t time) {
    Occurrences seen;
    const std::vector<int64_t> times = {time};
    seen.times = times;
    std::vector<Address> address(1);
    ASSERT_OK(
        aging->FindOrAdmit(std::vector<Key>{key}, {}, seen, address, Serial()));
  };
  see(50, 1000);
  Evicted evicted;
  ASSERT_OK(aging->Evict(10, &evicted));
  EXPECT_EQ(evicted.candidates, 0);
  EXPECT_EQ(aging->eviction_stats().candidates, 2);
  see(51, 1010);
  ASSERT_OK(aging->Evict(10, &evicted));
  EXPECT_EQ(evicted.candidates, 2);
  EXPECT_EQ(aging->eviction_stats().candidates, 1);
}

TEST(Checkpoint_NoRowWaitsAfterARestore) {
  const TemporaryDirectory directory;
  TableOptions options = Options("t", 2);
  options.admission.record_times = true;
  const auto table = MakeTable(options);
  const SavedTable saved = Save(table.get(), directory / "m");
  FindOrInsert(table.get(), KeyRange(0, 100));
  Evicted evicted;
  ASSERT_OK(table->Evict(0, &evicted));
  FindOrInsert(table.get(), {500});  // makes rows ready
  EXPECT_LT(0, table->eviction_stats().rows_waiting);
  ASSERT_OK(Restore(table.get(), directory / "m", saved));
  EXPECT_EQ(table->eviction_stats().rows_waiting, 0);
}

TEST(Checkpoint_ASaveToTheSamePrefixKeepsTheOneThatCounts) {
  const TemporaryDirectory directory;
  const auto table = MakeTable(Options("t", 2));
  const std::string prefix = directory / "m";
  FindOrInsert(table.get(), {1});
  const SavedTable first = Save(table.get(), prefix);
  CompleteCheckpoint(prefix, first);
  // The second is never completed: the process ends before the index is there.
  FindOrInsert(table.get(), {2});
  const SavedTable second = Save(table.get(), prefix);
  ASSERT_OK(Restore(table.get(), prefix, first));
  EXPECT_EQ(table->size(), 1);
  FindOrInsert(table.get(), {3, 4});
  const SavedTable third = Save(table.get(), prefix);
  EXPECT_EQ(third.manifest.sequence, 2);
  ASSERT_OK(Restore(table.get(), prefix, first));
  FindOrInsert(table.get(), {3, 4});
  const SavedTable fourth = Save(table.get(), prefix);
  CompleteCheckpoint(prefix, fourth);
  for (int i = 0; i < 4; ++i) {
    const SavedTable next = Save(table.get(), prefix);
    ASSERT_OK(Restore(table.get(), prefix, fourth));
  }
  for (int i = 0; i < 4; ++i) {
    const SavedTable next = Save(table.get(), prefix);
    CompleteCheckpoint(prefix, next);
    ASSERT_OK(Restore(table.get(), prefix, next));
  }
  // Old files go, but for the last ones that their writer still holds.
  EXPECT_LE(directory.Files().size(), 5);
}

TEST(Checkpoint_OverlappingSavesAreRefusedByName) {
  const TemporaryDirectory directory;
  TableOptions options = Options("t", 4);
  options.fixed_capacity = 10;
  const auto table = MakeTable(options);
  FindOrInsert(table.get(), {1});
  SaveRequest request = SaveTo(directory / "first");
  request.read_rows = [&](Span<const RowIndex> offsets, float* out) {
    std::fill_n(out, offsets.size() * 4, 1.0f);
    SavedTable saved;
    std::thread([&] {
      const Status status = table->Save(SaveTo(directory / "second"), &saved);
      EXPECT_EQ(status.code(), Code::kFailedPrecondition);
      EXPECT_TRUE(status.message().find(directory / "first") !=
                  std::string::npos);
      EXPECT_TRUE(status.message().find(directory / "second") !=
                  std::string::npos);
    }).join();
  };
  SavedTable saved;
  EXPECT_OK(table->Save(request, &saved));
  EXPECT_EQ(directory.Files().size(), 1);
}

// Of a table of fixed capacity, as if all rows had been read.
void InitializeAll(Table* table) {
  std::vector<int64_t> offsets(table->options().fixed_capacity);
  for (size_t i = 0; i < offsets.size(); ++i) offsets[i] = i;
  ASSERT_OK(table->InitializeRows(offsets, [](int64_t, const float*) {}));
}

// Saves a table of fixed capacity whose rows [capacity, 1 + slots] of dim
// floats are in `content`, and gives what a growing table restores.
std::map<Key, ExportedRow> SavedRows(Table* table, SaveRequest request,
                                     const std::vector<float>& content) {
  const int64_t stride =
      table->options().dim *
      (1 + static_cast<int64_t>(request.slots.initial_values.size()));
  if (!request.read_rows) {
    request.read_rows = [&](Span<const RowIndex> offsets, float* out) {
      for (const RowIndex offset : offsets) {
        out = std::copy_n(content.data() + offset * stride, stride, out);
      }
    };
  }
  SavedTable saved;
  EXPECT_OK(table->Save(request, &saved));
  TableOptions options = Options("grows", table->options().dim);
  const auto grows = MakeTable(options);
  EXPECT_OK(Restore(grows.get(), request.prefix, saved));
  return Export(*grows);
}

TEST(Checkpoint_RowsThatNobodyHasWrittenAreSavedAsTheyBegin) {
  const TemporaryDirectory directory;
  TableOptions options = Options("t", 2);
  options.fixed_capacity = 2;
  options.admission.record_times = true;
  const auto table = MakeTable(options);
  const std::vector<float> old = {1, 1, 2, 2, 3, 3, 4, 4};
  SaveRequest request = SaveTo(directory / "m");
  request.slots = SlotLayout{"Adagrad", {0.5f}};
  Occurrences seen;
  const auto see = [&](Key key, int64_t time) {
    std::vector<Address> address(1);
    seen.times = Span<const int64_t>(&time, 1);
    ASSERT_OK(
        table->FindOrAdmit(std::vector<Key>{key}, {}, seen, address, Serial()));
    return static_cast<int64_t>(RowOf(address[0]));
  };
  const std::vector<int64_t> first = {see(10, 1)};
  std::vector<float> initial(2);
  const auto fill = [&](int64_t, const float* row) {
    initial.assign(row, row + 2);
  };
  auto rows = SavedRows(table.get(), request, old);
  const std::vector<float> unwritten = rows.at(10).row;
  ASSERT_OK(table->InitializeRows(first, fill));
  EXPECT_TRUE(SameBits(unwritten, {initial[0], initial[1], 0.5f, 0.5f}));
  // Written now.
  rows = SavedRows(table.get(), request, old);
  EXPECT_TRUE(SameBits(rows.at(10).row, {old.begin() + 4 * first[0],
                                         old.begin() + 4 * first[0] + 4}));
  // The row becomes another key's: it is written before its slots are.
  Evicted evicted;
  see(20, 100);
  ASSERT_OK(table->Evict(50, &evicted));
  EXPECT_EQ(evicted.keys, 1);
  const int64_t reused = see(30, 100);
  EXPECT_EQ(reused, first[0]);
  rows = SavedRows(table.get(), request, old);
  ASSERT_OK(table->InitializeRows(first, fill));
  EXPECT_TRUE(SameBits(rows.at(30).row, {initial[0], initial[1], 0.5f, 0.5f}));
  rows = SavedRows(table.get(), request, old);
  EXPECT_TRUE(SameBits(rows.at(30).row,
                       {old[4 * reused], old[4 * reused + 1], 0.5f, 0.5f}));
  bool any = false;
  ASSERT_OK(table->HasStaleSlots(first, &any));
  EXPECT_TRUE(any);
  ASSERT_OK(table->ResetSlots(first, [](int64_t) {}));
  ASSERT_OK(table->HasStaleSlots(first, &any));
  EXPECT_TRUE(!any);
  rows = SavedRows(table.get(), request, old);
  EXPECT_EQ(rows.at(30).row[2], old[4 * reused + 2]);
}

TEST(Checkpoint_ARestoreOfFixedCapacityWaitsForSteps) {
  const TemporaryDirectory directory;
  TableOptions options = Options("t", 1);
  options.fixed_capacity = 8;
  const auto table = MakeTable(options);
  FindOrInsert(table.get(), {1, 2, 3});
  SaveRequest save = SaveTo(directory / "m");
  save.read_rows = [](Span<const RowIndex>, float*) {};
  RestoreRequest request;
  request.prefix = save.prefix;
  ASSERT_OK(table->Save(save, &request.saved));
  request.wait_for_steps = std::chrono::milliseconds(20);
  std::atomic<bool> ended{false};
  std::atomic<bool> held{false};
  request.hold_rows = [&] {
    EXPECT_TRUE(ended.load());
    held = true;
    return Status::Ok();
  };
  request.write_rows = [](Span<const RowIndex>, const float*) {};
  RestoreReport report;
  FindOrInsert(table.get(), {4});
  auto step = BeginStep(table.get());
  // A run that restores and trains would wait for itself.
  EXPECT_ERROR(table->Restore(request, &report), Code::kFailedPrecondition,
               "one has not ended for 20 ms");
  EXPECT_EQ(table->size(), 4);
  EXPECT_TRUE(!held.load());
  request.wait_for_steps = std::chrono::minutes(1);
  std::thread restore([&] { EXPECT_OK(table->Restore(request, &report)); });
  // None begins while it waits.
  std::shared_ptr<void> refused;
  Status status;
  do {
    status = table->BeginStep(&refused);
    refused.reset();
  } while (status.ok());
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_TRUE(status.message().find("about to be restored") !=
              std::string::npos);
  EXPECT_EQ(table->size(), 4);
  ended = true;
  step.reset();
  restore.join();
  EXPECT_EQ(table->size(), 3);
  EXPECT_TRUE(held.load());
  step = BeginStep(table.get());
  EXPECT_TRUE(step != nullptr);
}

// A lookup that counts a key while its row waits to be saved copies the row,
// wherever that is.
TEST(Checkpoint_RowsOfFixedCapacityAreSavedByWhoeverCountsThem) {
  const TemporaryDirectory directory;
  constexpr int kDim = 64;
  constexpr int64_t kKeys = 40000;  // several buffers
  TableOptions options = Options("t", kDim);
  options.fixed_capacity = kKeys;
  options.admission.record_times = true;
  const auto table = MakeTable(options);
  const std::vector<Key> keys = KeyRange(0, kKeys);
  FindOrInsert(table.get(), keys);
  InitializeAll(table.get());
  SaveRequest request = SaveTo(directory / "m");
  std::atomic<int> calls{0};
  std::atomic<bool> held{false};
  std::thread counting;
  request.hold_rows = [&](int64_t* steps) {
    held = true;
    *steps = 5;
  };
  request.release_rows = [&] {
    counting.join();
    held = false;
  };
  request.read_rows = [&](Span<const RowIndex> offsets, float* out) {
    EXPECT_TRUE(held.load());
    // Begins to count when the first buffer is full.
    if (calls++ == 0) {
      counting = std::thread([&] {
        std::vector<Key> last(keys.rbegin(), keys.rbegin() + kKeys / 2);
        FindOrInsert(table.get(), last);
      });
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    for (const RowIndex offset : offsets) {
      out = std::fill_n(out, kDim, static_cast<float>(offset));
    }
  };
  const auto rows = SavedRows(table.get(), request, {});
  EXPECT_EQ(rows.size(), kKeys);
  EXPECT_LT(100, calls.load());  // most by the thread that counts
  EXPECT_TRUE(!held.load());
  int64_t wrong = 0;
  for (const auto& [key, row] : rows) {
    const float offset = static_cast<float>(RowOf(Find(*table, {key})[0]));
    wrong += row.row[0] != offset || row.row[kDim - 1] != offset;
  }
  EXPECT_EQ(wrong, 0);
}

TEST(Checkpoint_RowsOfFixedCapacityAreTheCallers) {
  const TemporaryDirectory directory;
  TableOptions options = Options("t", 2);
  options.fixed_capacity = 4;
  const auto table = MakeTable(options);
  FindOrInsert(table.get(), {10, 20, 30});
  InitializeAll(table.get());
  SaveRequest request = SaveTo(directory / "m");
  request.slots = SlotLayout{"Adagrad", {0.5f}};
  request.steps = 9;
  request.read_rows = [&](Span<const RowIndex> offsets, float* out) {
    for (const RowIndex offset : offsets) {
      for (int i = 0; i < 4; ++i) *out++ = 100.0f * offset + i;
    }
  };
  SavedTable saved;
  ASSERT_OK(table->Save(request, &saved));

  const auto grows = MakeTable(Options("t", 2));
  ASSERT_OK(Restore(grows.get(), directory / "m", saved));
  EXPECT_EQ(grows->stride(), 4);
  const auto rows = Export(*grows);
  EXPECT_EQ(rows.size(), 3);
  EXPECT_EQ(rows.at(10).row[1], 1.0f);

  options.fixed_capacity = 2;
  const auto small = MakeTable(options);
  RestoreRequest restore;
  restore.prefix = directory / "m";
  restore.saved = saved;
  restore.slots = request.slots;
  RestoreReport report;
  const Status status = small->Restore(restore, &report);
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_TRUE(status.message().find("3 keys, more than its capacity 2") !=
              std::string::npos);

  options.fixed_capacity = 30;
  const auto large = MakeTable(options);
  std::map<RowIndex, std::vector<float>> written;
  restore.write_rows = [&](Span<const RowIndex> offsets, const float* in) {
    for (const RowIndex offset : offsets) {
      written[offset].assign(in, in + 4);
      in += 4;
    }
  };
  ASSERT_OK(large->Restore(restore, &report));
  EXPECT_EQ(report.steps, 9);
  EXPECT_EQ(written.size(), 3);
  for (const Key key : {10, 20, 30}) {
    const auto found = Find(*large, {key});
    EXPECT_TRUE(SameBits(written[RowOf(found[0])], rows.at(key).row));
  }
}

// Every row that is saved is one of the instant of the save: each update
// adds the same to all rows.
TEST(Checkpoint_WhatIsSavedIsOfOneInstant) {
  const TemporaryDirectory directory;
  TableOptions options = Options("t", 16);
  options.initializer.kind = InitializerKind::kConstant;
  options.initializer.a = 0;
  const auto table = MakeTable(options);
  const std::vector<Key> keys = KeyRange(0, 100000);
  const auto addresses = FindOrInsert(table.get(), keys);
  std::atomic<bool> stop{false};
  std::thread trainer([&] {
    const std::vector<float> gradients(keys.size() * 16, -1.0f);
    SgdParams params;
    params.learning_rate = 1;
    Key next = 1000000;
    while (!stop) {
      EXPECT_OK(table->ApplySgd(addresses, gradients.data(), params, Serial()));
      FindOrInsert(table.get(), {next++});
    }
  });
  for (int round = 0; round < 5; ++round) {
    const std::string prefix = directory / ("m" + std::to_string(round));
    const SavedTable saved = Save(table.get(), prefix);
    const auto copy = MakeTable(options);
    ASSERT_OK(Restore(copy.get(), prefix, saved));
    const auto rows = Export(*copy);
    EXPECT_EQ(rows.size(), saved.manifest.size);
    for (const auto& row : rows) {
      const float expected = row.first < 100000
                                 ? static_cast<float>(saved.manifest.updates)
                                 : 0.0f;
      EXPECT_TRUE(SameBits(row.second.row, std::vector<float>(16, expected)));
    }
  }
  stop = true;
  trainer.join();
}

TEST(Checkpoint_SlotsMayBeAddedDuringASave) {
  const TemporaryDirectory directory;
  for (int round = 0; round < 10; ++round) {
    const auto table = MakeTable(Options("t", 32));
    FindOrInsert(table.get(), KeyRange(0, 20000));
    const auto before = Export(*table);
    std::thread trainer([&] { Train(table.get(), KeyRange(0, 20000), 0.1f); });
    const std::string prefix = directory / std::to_string(round);
    const SavedTable saved = Save(table.get(), prefix);
    trainer.join();
    const auto copy = MakeTable(Options("t", 32));
    ASSERT_OK(Restore(copy.get(), prefix, saved));
    // Either before the update or after it, never half of it.
    const auto restored = Export(*copy);
    const auto after = Export(*table);
    if (saved.manifest.updates == 1) {
      EXPECT_TRUE(SameBits(restored, after));
    } else {
      for (const auto& row : restored) {
        EXPECT_TRUE(
            SameBits({row.second.row.begin(), row.second.row.begin() + 32},
                     before.at(row.first).row));
      }
    }
  }
}

SavedTable SaveAs(Table* table, const std::string& prefix, SaveKind kind,
                  bool complete = true, int64_t least_count = 0) {
  SaveRequest request = SaveTo(prefix);
  request.kind = kind;
  request.least_count = least_count;
  SavedTable saved;
  EXPECT_OK(table->Save(request, &saved));
  CompleteCheckpoint(prefix, saved);
  if (complete) table->CommitSave(prefix);
  return saved;
}

TEST(Checkpoint_DeltasHoldWhatHasChanged) {
  const TemporaryDirectory directory;
  const auto table = MakeTable(Options("t", 4));
  Train(table.get(), KeyRange(0, 1000), 0.1f);
  // Nothing to build on: full.
  const SavedTable base =
      SaveAs(table.get(), directory / "m-1", SaveKind::kDelta);
  EXPECT_FALSE(base.manifest.is_delta);
  EXPECT_EQ(base.files.size(), 1);
  std::vector<SavedTable> deltas;
  std::vector<std::map<Key, ExportedRow>> states;
  for (int i = 0; i < 4; ++i) {
    Train(table.get(), KeyRange(995 + 3 * i, 10), 0.1f);
    const std::string prefix = directory / ("m-" + std::to_string(i + 2));
    deltas.push_back(SaveAs(table.get(), prefix, SaveKind::kDelta));
    states.push_back(Export(*table));
    EXPECT_TRUE(deltas[i].manifest.is_delta);
    EXPECT_EQ(deltas[i].manifest.rows, 10);
    EXPECT_EQ(deltas[i].files.size(), i + 2);
  }
  // A plain save in between changes nothing of that.
  SaveAs(table.get(), directory / "plain", SaveKind::kPlain);
  // Each checkpoint has all it needs, whatever is deleted of the others.
  for (const std::string& name : directory.Files()) {
    if (name.compare(0, 4, "m-1.") == 0 || name.compare(0, 4, "m-3.") == 0) {
      unlink((directory / name).c_str());
    }
  }
  for (const int i : {0, 2, 3}) {
    const std::string prefix = directory / ("m-" + std::to_string(i + 2));
    const auto copy = MakeTable(Options("t", 4));
    ASSERT_OK(Restore(copy.get(), prefix, deltas[i]));
    EXPECT_TRUE(SameBits(Export(*copy), states[i]));
    EXPECT_EQ(copy->update_count(), deltas[i].manifest.updates);
    ASSERT_OK(Restore(copy.get(), prefix, deltas[i]));
    EXPECT_TRUE(SameBits(Export(*copy), states[i]));
  }
  // A part that is missing is named.
  const std::string part = directory / ("m-5" + deltas[3].files[2].suffix);
  unlink(part.c_str());
  const auto copy = MakeTable(Options("t", 4));
  const Status status = Restore(copy.get(), directory / "m-5", deltas[3]);
  EXPECT_EQ(status.code(), Code::kDataLoss);
  EXPECT_TRUE(status.message().find(part) != std::string::npos);
}

// What a key was met counts until a save that has it is complete.
TEST(Checkpoint_AFailedDeltaForgetsNoMeetings) {
  const TemporaryDirectory directory;
  TableOptions options = Options("t", 2);
  options.admission.record_times = true;
  const auto table = MakeTable(options);
  const auto meet = [&](Key key, int32_t times) {
    const std::vector<int32_t> counts = {times};
    Occurrences seen;
    seen.counts = counts;
    const std::vector<int64_t> time = {1};
    seen.times = time;
    std::vector<Address> address(1);
    ASSERT_OK(
        table->FindOrAdmit(std::vector<Key>{key}, {}, seen, address, Serial()));
  };
  int number = 0;
  const auto save = [&](bool completes) {
    return SaveAs(table.get(), directory / ("m-" + std::to_string(number++)),
                  SaveKind::kDelta, completes, 3)
        .manifest.rows;
  };
  meet(1, 1);
  EXPECT_EQ(save(true), 1);  // the first is full
  meet(1, 3);
  meet(2, 2);
  EXPECT_EQ(save(false), 1);
  meet(2, 1);
  EXPECT_EQ(save(false), 2);
  EXPECT_EQ(save(true), 2);
  EXPECT_EQ(save(true), 0);
  // Those of before that are over.
  meet(1, 2);
  EXPECT_EQ(save(true), 0);
  meet(1, 1);
  EXPECT_EQ(save(true), 1);
}

// Keys that a delta leaves out are not counted in it until they are saved.
TEST(Checkpoint_TheSizeOfADeltaIsOfWhatTheFilesHold) {
  const TemporaryDirectory directory;
  TableOptions options = Options("t", 2);
  options.admission.record_times = true;
  const auto table = MakeTable(options);
  int number = 0;
  int64_t now = 0;
  const auto meet = [&](const std::vector<Key>& keys, int32_t times) {
    const std::vector<int32_t> counts(keys.size(), times);
    Occurrences seen;
    seen.counts = counts;
    const std::vector<int64_t> time = {++now};
    seen.times = time;
    std::vector<Address> addresses(keys.size());
    ASSERT_OK(table->FindOrAdmit(keys, {}, seen, addresses, Serial()));
  };
  const auto save = [&](SaveKind kind, bool completes = true) {
    SaveRequest request = SaveTo(directory / ("m-" + std::to_string(number++)));
    request.kind = kind;
    request.least_count = 3;
    SavedTable saved;
    EXPECT_OK(table->Save(request, &saved));
    if (completes) {
      CompleteCheckpoint(request.prefix, saved);
      table->CommitSave(request.prefix);
    }
    const auto copy = MakeTable(Options("t", 2));
    EXPECT_OK(Restore(copy.get(), request.prefix, saved));
    EXPECT_EQ(saved.manifest.size, copy->size());
    return saved.manifest.size;
  };
  meet({1, 2, 3}, 1);
  EXPECT_EQ(save(SaveKind::kBase), 3);
  meet({9}, 1);
  meet({1}, 3);
  EXPECT_EQ(save(SaveKind::kDelta), 3);
  EXPECT_EQ(save(SaveKind::kPlain), 4);
  meet({9}, 2);
  meet({10}, 2);
  // Whoever reads this one finds 9, and the next delta has it again.
  EXPECT_EQ(save(SaveKind::kDelta, false), 4);
  meet({9}, 3);
  EXPECT_EQ(save(SaveKind::kDelta), 4);
  EXPECT_EQ(save(SaveKind::kDelta), 4);
  // Another key in the row of one that was in the files.
  Evicted evicted;
  meet({11}, 5);
  ASSERT_OK(table->Evict(0, &evicted));
  EXPECT_EQ(table->size(), 0);
  meet(KeyRange(100, 5), 1);
  EXPECT_EQ(save(SaveKind::kDelta), 0);
  meet(KeyRange(100, 2), 2);
  EXPECT_EQ(save(SaveKind::kDelta), 2);
  EXPECT_EQ(save(SaveKind::kBase), 5);
}

TEST(Checkpoint_ASaveThatIsNotCompleteLeavesItsChangesToTheNext) {
  const TemporaryDirectory directory;
  const auto table = MakeTable(Options("t", 4));
  Train(table.get(), KeyRange(0, 100), 0.1f);
  SaveAs(table.get(), directory / "m-1", SaveKind::kBase);
  Train(table.get(), KeyRange(0, 3), 0.1f);
  SaveAs(table.get(), directory / "m-2", SaveKind::kDelta, false);
  Train(table.get(), KeyRange(3, 4), 0.1f);
  const SavedTable delta =
      SaveAs(table.get(), directory / "m-3", SaveKind::kDelta);
  EXPECT_EQ(delta.manifest.rows, 7);
  EXPECT_EQ(delta.files.size(), 2);
  const auto copy = MakeTable(Options("t", 4));
  ASSERT_OK(Restore(copy.get(), directory / "m-3", delta));
  EXPECT_TRUE(SameBits(Export(*copy), Export(*table)));
}

TEST(Checkpoint_ADeltaMayBringSlotsAndIsFullAfterARestore) {
  const TemporaryDirectory directory;
  const auto table = MakeTable(Options("t", 4));
  FindOrInsert(table.get(), {1, 2});
  const SavedTable base =
      SaveAs(table.get(), directory / "m-1", SaveKind::kBase);
  Train(table.get(), {1}, 0.1f);
  const SavedTable delta =
      SaveAs(table.get(), directory / "m-2", SaveKind::kDelta);
  EXPECT_TRUE(delta.manifest.is_delta);
  EXPECT_EQ(delta.manifest.rows, 1);
  const auto copy = MakeTable(Options("t", 4));
  ASSERT_OK(Restore(copy.get(), directory / "m-2", delta));
  EXPECT_TRUE(SameBits(Export(*copy), Export(*table)));
  ASSERT_OK(Restore(table.get(), directory / "m-1", base));
  EXPECT_FALSE(SaveAs(table.get(), directory / "m-4", SaveKind::kDelta)
                   .manifest.is_delta);
}

TEST(Checkpoint_AReleasedTableIsNeitherSavedNorRestored) {
  const TemporaryDirectory directory;
  const auto table = MakeTable(Options("t", 2));
  const SavedTable saved = Save(table.get(), directory / "m");
  table->Release();
  SavedTable again;
  EXPECT_EQ(table->Save(SaveTo(directory / "n"), &again).code(),
            Code::kFailedPrecondition);
  EXPECT_EQ(Restore(table.get(), directory / "m", saved).code(),
            Code::kFailedPrecondition);
}

}  // namespace
}  // namespace testing
}  // namespace mxrec
