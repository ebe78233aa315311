// The dynamic embedding table: a growing key index over rows that are reached
// by address. See docs/architecture.md for the contracts.
#ifndef MXREC_TABLE_H_
#define MXREC_TABLE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "mxrec/address.h"
#include "mxrec/admission.h"
#include "mxrec/initializer.h"
#include "mxrec/parallel.h"
#include "mxrec/span.h"
#include "mxrec/status.h"

namespace mxrec {

class RowWrites;  // a step that writes rows kept elsewhere

struct TableOptions {
  std::string name;  // used in every message
  int dim = 0;       // 1..8192
  InitializerOptions initializer;
  bool record_counts = true;  // keep an occurrence count per key
  // 0: the table grows. Else it holds at most so many keys and no rows: they
  // are kept elsewhere, in an array of so many rows, and an address leads to an
  // offset in [0, fixed_capacity). See Offsets.
  int64_t fixed_capacity = 0;
  // Their rows are never updated; else they are keys like others.
  std::vector<Key> padding_keys;
  // Create sets record_counts and record_times where it needs them.
  AdmissionOptions admission;
};

// Slots an optimizer keeps in each row behind the embedding.
struct SlotLayout {
  std::string optimizer;              // "LazyAdam", ...
  std::vector<float> initial_values;  // one per slot; a slot has dim columns
};

struct SgdParams {
  float learning_rate = 0;
  float weight_decay = 0;
};

struct LazyAdamParams {
  float learning_rate = 0.001f;
  float beta1 = 0.9f;
  float beta2 = 0.999f;
  float epsilon = 1e-8f;
};

// Adam that decays the moments of every row at each step and moves every row by
// them, as TensorFlow's Adam does with sparse gradients. The caller works out
// the step size from the number of steps.
struct AdamParams {
  float step_size = 0;
  float beta1 = 0.9f;
  float beta2 = 0.999f;
  float epsilon = 1e-8f;
};

struct AdagradParams {
  float learning_rate = 0.001f;
  float initial_accumulator_value = 0.9f;
  float epsilon = 1e-7f;      // added under the root
  float root_epsilon = 0.0f;  // added to the root
};

struct FtrlParams {
  float learning_rate = 0;  // > 0
  float learning_rate_power = -0.5f;
  float initial_accumulator_value = 0.1f;
  float l1 = 0;
  float l2 = 0;
  float l2_shrinkage = 0;
};

struct MemoryUsage {
  int64_t index_bytes = 0;
  int64_t row_bytes = 0;    // bytes of row slabs in use (rows handed out)
  int64_t other_bytes = 0;  // keys, counts, bitmaps, candidates
};

struct ExportChunk {
  Span<const Key> keys;
  Span<const float> rows;      // [keys.size(), stride]
  Span<const int64_t> counts;  // empty where they are not recorded
  Span<const int64_t> times;   // the same
};

struct RestoreReport;  // mxrec/saving.h
struct RestoreRequest;
struct SaveRequest;
struct SavedTable;

// Thread safety: all methods may be called from any thread at any time, the
// destructor excepted. Who may invalidate an address: Evict-like operations
// (per row, through its generation), Clear and Release (all).
class Table {
 public:
  static Status Create(TableOptions options, std::shared_ptr<Table>* table);
  // Checks what the options of admission ask for and sets what they need, as
  // Create does: counts, times.
  static Status CompleteOptions(TableOptions* options);
  virtual ~Table() = default;

  virtual const TableOptions& options() const = 0;

  // For each key the address of its visible row. A missing key is inserted
  // with its initial row (a reserved row becomes visible). `hints` is empty or
  // as long as `keys`: a hint that is an address of this table, current,
  // visible and whose row holds this key is used without searching; any other
  // value is ignored. `seen` is added to the keys' counts and times. Keys may
  // repeat. With admission a key gets a row only once its count, with all its
  // occurrences in `keys`, has reached the threshold; until then kNoRow.
  virtual Status FindOrAdmit(Span<const Key> keys, Span<const Address> hints,
                             const Occurrences& seen, Span<Address> addresses,
                             const Parallel& parallel) = 0;
  Status FindOrInsert(Span<const Key> keys, Span<const Address> hints,
                      Span<const int32_t> counts, Span<Address> addresses,
                      const Parallel& parallel) {
    Occurrences seen;
    seen.counts = counts;
    return FindOrAdmit(keys, hints, seen, addresses, parallel);
  }

  // The same without inserting or counting: kNoRow where there is no visible
  // row.
  virtual Status Find(Span<const Key> keys, Span<const Address> hints,
                      Span<Address> addresses,
                      const Parallel& parallel) const = 0;

  // Hints for a later FindOrInsert or Find. With `reserve`, a missing key gets
  // a reserved row, invisible until FindOrInsert meets the key; but not in a
  // table that admits keys or bounds their number, where a key that is never
  // trained must not have a row.
  virtual Status LookAhead(Span<const Key> keys, bool reserve,
                           Span<Address> hints, const Parallel& parallel) = 0;

  // Copies embeddings [addresses.size(), dim] to `out`; `default_row` (dim
  // values, or null for zeros) where the address is kNoRow. An illegal address
  // is InvalidArgument, naming table, position and value, and `out` is then
  // unspecified.
  virtual Status Gather(Span<const Address> addresses, const float* default_row,
                        float* out, const Parallel& parallel) const = 0;

  // Updates by address. `gradients` is [addresses.size(), dim]. Gradients of
  // an address that repeats are summed first, in order of position; kNoRow and
  // the rows of padding keys are skipped. All addresses are checked before
  // anything is written. Adds the optimizer's slots on first use;
  // FailedPrecondition if the table already has slots of another optimizer, or
  // with other initial values (SGD keeps none and goes with any).
  virtual Status ApplySgd(Span<const Address> addresses, const float* gradients,
                          const SgdParams& params,
                          const Parallel& parallel) = 0;
  virtual Status ApplyLazyAdam(Span<const Address> addresses,
                               const float* gradients,
                               const LazyAdamParams& params,
                               const Parallel& parallel) = 0;
  // Moves all visible rows that are not of padding keys, whatever `addresses`.
  virtual Status ApplyAdam(Span<const Address> addresses,
                           const float* gradients, const AdamParams& params,
                           const Parallel& parallel) = 0;
  virtual Status ApplyAdagrad(Span<const Address> addresses,
                              const float* gradients,
                              const AdagradParams& params,
                              const Parallel& parallel) = 0;
  virtual Status ApplyFtrl(Span<const Address> addresses,
                           const float* gradients, const FtrlParams& params,
                           const Parallel& parallel) = 0;

  // Gives each key the row `rows[i]` [dim], whatever it had; missing keys are
  // inserted, and counted 0 times. Slots begin anew. Of a key that repeats the
  // last row holds. Others may see the rows one by one.
  virtual Status Import(Span<const Key> keys, const float* rows,
                        const Parallel& parallel) = 0;
  // Leaves the table as it was when it was made, but for what optimizers have
  // asked to keep per row: no keys, no counts, no steps. Waits for a save under
  // way. Addresses of before are illegal afterwards.
  virtual Status Clear() = 0;

  // For a table of fixed capacity. offsets[i] is the row of addresses[i], -1
  // for kNoRow; *all_initialized says whether InitializeRows has seen them all.
  // An illegal address is InvalidArgument, as in Gather.
  virtual Status Offsets(Span<const Address> addresses, Span<int64_t> offsets,
                         bool* all_initialized) const = 0;
  // Calls write(offset, initial row [dim]) once for each of the offsets that
  // was not initialized before. The caller holds the lock of its rows.
  virtual Status InitializeRows(
      Span<const int64_t> offsets,
      const std::function<void(int64_t, const float*)>& write) = 0;
  // Who writes rows elsewhere without the caller of Save keeping them still
  // does so from BeginWrites until `writes` is dropped, and calls KeepRows for
  // the rows' offsets before. Null while a save waits for those who write.
  virtual Status BeginWrites(std::shared_ptr<RowWrites>* writes) = 0;
  // Calls `may_begin` once, from any thread, when BeginWrites is worth another
  // try; false, and never, if it is now.
  virtual bool WaitForWrites(std::function<void()> may_begin) = 0;
  // Copies rows that a save still needs; may wait for the disk. -1 is skipped.
  // InvalidArgument as in TrainedPositions.
  virtual Status KeepRows(Span<const int64_t> offsets, RowWrites* writes) = 0;
  // The positions of those offsets whose rows an update may change, ascending:
  // not -1 and not of a padding key. InvalidArgument for an offset outside of
  // [-1, fixed_capacity).
  virtual Status TrainedPositions(Span<const int64_t> offsets,
                                  std::vector<int64_t>* positions) const = 0;
  // All rows are to be initialized again when they are met again.
  virtual void ForgetInitializedRows() = 0;
  // Whether ResetSlots has something to do.
  virtual Status HasStaleSlots(Span<const int64_t> offsets,
                               bool* any) const = 0;
  // Calls write(offset) once for each of the offsets whose row has come from
  // an evicted key since: what optimizers keep of it elsewhere is to be
  // initialized. The caller holds the lock of that.
  virtual Status ResetSlots(Span<const int64_t> offsets,
                            const std::function<void(int64_t)>& write) = 0;

  // Admission and eviction. An evicted key loses its row, its slots and its
  // count, and is not found any more. Its address stays legal, of a row that
  // nothing else sees, until every step has ended that began before; then the
  // row may be used again, under another address.

  // A step that is going on; null if the table grows and cannot evict.
  // Addresses that were handed out since are legal until it is dropped, and a
  // restore of a table of fixed capacity waits for that. FailedPrecondition
  // while one waits.
  virtual Status BeginStep(std::shared_ptr<void>* step) = 0;
  // Evicts the keys and candidates with newest time - last seen >= `threshold`,
  // in short slices, so that lookups go on. FailedPrecondition if times are
  // not recorded.
  virtual Status Evict(int64_t threshold, Evicted* evicted) = 0;
  // > 0: keys are admitted from this count on. 0: counts stay as they are from
  // now on, under the threshold of before. *in_force is the threshold then.
  // FailedPrecondition for a table without admission. A key that has a row
  // keeps it.
  virtual Status SetAccessThreshold(int64_t threshold, int64_t* in_force) = 0;
  virtual AdmissionState admission_state() const = 0;
  // Whether there is admission does not change.
  virtual Status SetAdmissionState(const AdmissionState& state) = 0;
  // Streams the keys that have no row yet, in no particular order, in chunks of
  // at most `chunk_size`; of one instant with Export if nothing runs meanwhile.
  // `visit` must not call the table.
  virtual Status ExportCandidates(
      int64_t chunk_size,
      const std::function<Status(const CandidateChunk&)>& visit) const = 0;
  // Adds candidates to those there are; a key that has a row is left alone.
  virtual Status RestoreCandidates(const CandidateChunk& candidates) = 0;
  // Whether evicted keys are written down, for TakeErasedKeys.
  virtual void LogErasedKeys(bool enabled) = 0;
  // The keys that lost their rows since the last call, in order. A key may have
  // a row again by now.
  virtual void TakeErasedKeys(std::vector<Key>* keys) = 0;
  virtual EvictionStats eviction_stats() const = 0;

  virtual int64_t size() const = 0;          // visible keys
  virtual int64_t capacity() const = 0;      // rows that fit without new memory
  virtual int stride() const = 0;            // floats per row, slots included
  virtual int64_t update_count() const = 0;  // optimizer steps applied
  virtual MemoryUsage memory() const = 0;

  // Streams all visible rows of one instant (updates wait), in no particular
  // order, in chunks of at most `chunk_rows`. `visit` must not call the table.
  virtual Status Export(
      int64_t chunk_rows,
      const std::function<Status(const ExportChunk&)>& visit) const = 0;

  // Writes the table's state of one instant to files of the checkpoint
  // `request.prefix`, while the table is used; updates of rows not written yet
  // wait if the disk does not keep up. FailedPrecondition if another save or
  // restore of the table is under way. After an error nothing is left behind.
  virtual Status Save(const SaveRequest& request, SavedTable* saved) = 0;
  // The checkpoint `prefix` that Save last wrote to is complete: deltas may
  // build on it.
  virtual void CommitSave(const std::string& prefix) = 0;
  // Replaces the content by that of files; addresses of before are illegal
  // afterwards. All is checked first: the table is as it was after an error.
  virtual Status Restore(const RestoreRequest& request,
                         RestoreReport* report) = 0;

  // Frees the memory now. Every later call fails with FailedPrecondition
  // naming the table; it is safe while other threads use the table.
  virtual void Release() = 0;
  virtual bool released() const = 0;
};

// Unique keys of `ids` in order of first occurrence, the position of each id
// among them, and how often each occurs. Vectors are resized. Thread-safe.
template <typename T>
void Unique(Span<const T> ids, std::vector<Key>* keys, int32_t* restore,
            std::vector<int32_t>* counts);

// Live tables of this process by name, for use without a Session. Thread-safe.
// Holds weak references only.
class Registry {
 public:
  static Registry& Global();
  void Register(const std::shared_ptr<Table>& table);
  // Newest live, unreleased table of that name, or null.
  std::shared_ptr<Table> Find(const std::string& name) const;
  // All live, unreleased tables.
  std::vector<std::shared_ptr<Table>> Live() const;
  // Releases every live table. Returns how many there were.
  int ReleaseAll();

 private:
  struct Impl;
  Registry();
  ~Registry();
  std::unique_ptr<Impl> impl_;
};

}  // namespace mxrec

#endif  // MXREC_TABLE_H_
