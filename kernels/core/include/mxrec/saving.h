// Saving and restoring a table (Table::Save, Table::Restore).
#ifndef MXREC_SAVING_H_
#define MXREC_SAVING_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "mxrec/checkpoint.h"
#include "mxrec/table.h"

namespace mxrec {

// What a save is for. The files of a base and of the deltas after it belong
// together; a plain save stands for itself and leaves them alone.
enum class SaveKind { kPlain, kBase, kDelta };

struct SaveRequest {
  std::string prefix;   // of the checkpoint
  int file_number = 0;  // different for the tables of a checkpoint
  std::string key_dtype = "int64";
  SaveKind kind = SaveKind::kPlain;
  // Of a delta: keys that were met fewer times since the last save are left to
  // a later one.
  int64_t least_count = 0;
  // Of a table of fixed capacity, whose rows are elsewhere: their slots, the
  // steps of the slots' optimizer, and what copies rows [n, dim * (1 + slots)].
  //
  // If all who write rows say so (Table::BeginWrites), nothing need wait but
  // for a moment: when nobody writes, which may take `wait_for_writes`,
  // share_rows is called, which may change `steps`. From then on read_rows must
  // give what a row has, while other rows are written. If share_rows is null or
  // false, or somebody writes for longer than that, hold_rows is called
  // instead, which may change `steps`; if it is null the rows stand still for
  // the whole call. From then on they must stand still. release_rows, unless it
  // is null, is called when all are copied. These are called without a lock of
  // the table; after an error the caller releases what it has.
  SlotLayout slots;
  int64_t steps = 0;
  std::chrono::milliseconds wait_for_writes{2000};
  std::function<bool(int64_t* steps)> share_rows;
  std::function<void(int64_t* steps)> hold_rows;
  std::function<void()> release_rows;
  // From any thread meanwhile.
  std::function<void(Span<const RowIndex>, float*)> read_rows;
};

struct RestoreRequest {
  std::string prefix;
  SavedTable saved;
  std::string key_dtype = "int64";
  bool with_slots = true;  // else slots begin anew, and so do the steps
  // Only keys of this part are taken: those of PartOf(key, parts) == part.
  int part = 0;
  int parts = 1;
  // That read and fill; 0: see TableFileReader::Threads.
  int threads = 0;
  // Those that rows must have if they have any: of a table of fixed capacity
  // its own, else of the optimizer that will train it, or none if no one knows.
  SlotLayout slots;
  // Of a table of fixed capacity: what keeps the rows still from
  // then on to the end of the call (null if they are), and what stores rows [n,
  // dim * (1 + slots)]. Rows are held when all steps that have begun are over,
  // which may take `wait_for_steps`: they would go on to use offsets of before.
  std::chrono::milliseconds wait_for_steps{30000};
  std::function<Status()> hold_rows;
  // From several threads, each with other rows.
  std::function<void(Span<const RowIndex>, const float*)> write_rows;
};

struct RestoreReport {
  int64_t keys = 0;         // restored
  int64_t skipped = 0;      // of other parts
  int64_t steps = 0;        // of the optimizer that owns the slots
  std::string differences;  // of settings, now and when it was saved
};

// The part, of several, that a key belongs to.
int PartOf(Key key, int parts);

}  // namespace mxrec

#endif  // MXREC_SAVING_H_
