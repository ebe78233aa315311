// How long a table stops while it grows: the time of every call that inserts
// new keys, and of lookups of other keys by another thread at the same time.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bench/bench_utils.h"
#include "mxrec/table.h"
#include "tests/table_utils.h"
#include "tests/testing.h"

namespace mxrec {
namespace testing {
namespace {

constexpr int kDim = 16;
constexpr int64_t kKeys = 10000000;
constexpr int64_t kLookup = 1024;

// How long the calling thread, which made it, has waited for a processor that
// others had.
class ProcessorWaits {
 public:
  ProcessorWaits() : file_(open("/proc/thread-self/schedstat", O_RDONLY)) {}
  ~ProcessorWaits() {
    if (file_ >= 0) close(file_);
  }
  ProcessorWaits(const ProcessorWaits&) = delete;
  ProcessorWaits& operator=(const ProcessorWaits&) = delete;
  double Milliseconds() const {
    char text[128] = {};
    long long waited = 0;  // in ns, the second number
    if (file_ >= 0 && pread(file_, text, sizeof(text) - 1, 0) > 0) {
      std::sscanf(text, "%*d %lld", &waited);
    }
    return static_cast<double>(waited) * 1e-6;
  }

 private:
  const int file_;
};

// The times of one thread's calls.
class Calls {
 public:
  explicit Calls(std::string what) : what_(std::move(what)) {}

  void Time(const ProcessorWaits& waits, const std::function<void()>& work) {
    const double waited = waits.Milliseconds();
    const double ms = Milliseconds(work);
    wall_.push_back(ms);
    running_.push_back(ms - (waits.Milliseconds() - waited));
  }

  void Print() const {
    std::printf("| %s | %zu | %.3f | %.3f | %.2f | %.2f |\n", what_.c_str(),
                wall_.size(), Median(running_), Quantile(running_, 0.99),
                Quantile(running_, 1), Quantile(wall_, 1));
  }

 private:
  const std::string what_;
  std::vector<double> wall_;
  std::vector<double> running_;
};

// Lookups of `keys`, again and again, until it is destroyed.
class Reader {
 public:
  Reader(const Table& table, std::string what, std::vector<Key> keys)
      : table_(table),
        keys_(std::move(keys)),
        calls_(std::move(what)),
        thread_([this] { Run(); }) {}
  ~Reader() {
    stop_.store(true);
    thread_.join();
    calls_.Print();
  }

 private:
  void Run() {
    const ProcessorWaits waits;
    std::vector<Address> found(kLookup);
    const int64_t batches = static_cast<int64_t>(keys_.size()) / kLookup;
    for (int64_t batch = 0; !stop_.load(); batch = (batch + 1) % batches) {
      const Span<const Key> some(keys_.data() + batch * kLookup, kLookup);
      calls_.Time(waits,
                  [&] { EXPECT_OK(table_.Find(some, {}, found, Serial())); });
    }
  }

  const Table& table_;
  const std::vector<Key> keys_;
  Calls calls_;
  std::atomic<bool> stop_{false};
  std::thread thread_;  // last, so that it starts when all else is there
};

// What the system takes to hand out memory: a call that inserts rows pays it
// for each huge page that they begin. A virtual machine may take milliseconds
// where its host has to find the memory first; after this most of it is found.
void TouchHugePages() {
  constexpr int64_t kPages = 600;
  constexpr int64_t kPage = int64_t{2} << 20;
  void* const area = mmap(nullptr, (kPages + 1) * kPage, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (area == MAP_FAILED) return;
  madvise(area, (kPages + 1) * kPage, MADV_HUGEPAGE);
  char* const first = reinterpret_cast<char*>(
      (reinterpret_cast<uintptr_t>(area) + kPage - 1) & ~uintptr_t(kPage - 1));
  const ProcessorWaits waits;
  Calls calls("touch a huge page of new memory");
  for (int64_t page = 0; page < kPages; ++page) {
    calls.Time(waits, [&] { first[page * kPage] = 1; });
  }
  munmap(area, (kPages + 1) * kPage);
  calls.Print();
}

void Grow(int64_t batch, bool with_reader) {
  TableOptions options = Options("growth", kDim);
  options.record_counts = false;
  const auto table = MakeTable(options);
  std::vector<Key> keys(batch);
  std::vector<Address> addresses(batch);
  const ProcessorWaits waits;
  const auto insert = [&](Calls* calls, int64_t first) {
    const int64_t n = std::min(batch, kKeys - first);
    for (int64_t i = 0; i < n; ++i) keys[i] = KeyOf(first + i);
    const auto work = [&] {
      EXPECT_OK(table->FindOrInsert(Span<const Key>(keys.data(), n), {}, {},
                                    Span<Address>(addresses.data(), n),
                                    Serial()));
    };
    calls->Time(waits, work);
  };
  const std::string size = std::to_string(batch);
  const std::string beside = with_reader ? ", beside lookups" : "";

  std::vector<Key> present(kBatch);
  for (int64_t i = 0; i < kBatch; ++i) present[i] = KeyOf(i);
  FindOrInsert(table.get(), present);
  {
    Calls calls("insert " + size + " new keys" + beside);
    std::unique_ptr<Reader> reader;
    if (with_reader) {
      reader = std::make_unique<Reader>(
          *table, "find 1024 keys while the table grows", present);
    }
    for (int64_t first = kBatch; first < kKeys; first += batch) {
      insert(&calls, first);
    }
    reader.reset();
    calls.Print();
  }
  if (!with_reader) return;
  // The same without growth, for what the machine adds.
  Calls calls("find or insert " + size + " present keys" + beside);
  std::unique_ptr<Reader> reader = std::make_unique<Reader>(
      *table, "find 1024 keys, nothing grows", present);
  for (int64_t first = 0; first < kKeys; first += batch) insert(&calls, first);
  reader.reset();
  calls.Print();
}

}  // namespace

void BenchGrowth() {
  std::printf(
      "\n**calls while a table grows to 10,000,000 keys, dim 16, one thread "
      "inserts; ms without the time that others had the processor**\n\n"
      "| call | calls | median | 99 %% | slowest | slowest, with that time |\n"
      "|---|---|---|---|---|---|\n");
  TouchHugePages();
  for (const int64_t batch : {kBatch, kLookup}) {
    Grow(batch, false);
    Grow(batch, true);
  }
}

}  // namespace testing
}  // namespace mxrec
