// The parts of stress_table, each in a file of its own.
#ifndef MXREC_TESTS_STRESS_H_
#define MXREC_TESTS_STRESS_H_

#include <chrono>

namespace mxrec {
namespace testing {

// Steps that train and evaluate while keys are admitted and evicted.
void StressEviction(std::chrono::steady_clock::duration duration);

// Saves, deltas and exports while a table is trained and evicts.
void StressSaving(std::chrono::steady_clock::duration duration);

// The same of a table of fixed capacity, whose rows are written elsewhere.
void StressSavingFixed(std::chrono::steady_clock::duration duration);

}  // namespace testing
}  // namespace mxrec

#endif  // MXREC_TESTS_STRESS_H_
