// Steps that write rows of a table's variable.
#ifndef MXREC_OPS_ROW_WRITES_H_
#define MXREC_OPS_ROW_WRITES_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "op_utils.h"

namespace mxrec_ops {

// In the container of a step: from its first offsets of a table on to its end,
// rows of the table may be written.
class RowWritesResource final : public tensorflow::ResourceBase {
 public:
  explicit RowWritesResource(std::shared_ptr<mxrec::RowWrites> writes)
      : writes_(std::move(writes)) {}
  std::string DebugString() const override { return "mx_rec writes"; }
  mxrec::RowWrites* writes() const { return writes_.get(); }

 private:
  const std::shared_ptr<mxrec::RowWrites> writes_;
};

using RowWritesRef = tensorflow::core::RefCountPtr<RowWritesResource>;

// Whether this step itself may write rows of the table.
inline bool StepWritesRows(tensorflow::OpKernelContext* context,
                           const TableRef& table) {
  if (context->step_container() == nullptr) return true;
  RowWritesResource* writes = nullptr;
  const tensorflow::Status status =
      context->step_container()->Lookup<RowWritesResource>(
          context->resource_manager(), table->writes_name(), &writes);
  if (status.ok()) writes->Unref();
  return status.ok();
}

// Calls then(status, writes) when the step may write rows of the table, from
// now on to its end: at once, or in a thread of the pool after the beginning of
// a save. The step must have a container.
inline void BeginWritesOfStep(
    tensorflow::OpKernelContext* context, TableResource* table,
    std::function<void(const tensorflow::Status&, const RowWritesRef&)> then) {
  while (true) {
    bool may_begin = true;
    RowWritesResource* found = nullptr;
    const tensorflow::Status status =
        context->step_container()->LookupOrCreate<RowWritesResource>(
            context->resource_manager(), table->writes_name(), &found,
            [&](RowWritesResource** created) {
              std::shared_ptr<mxrec::RowWrites> writes;
              TF_RETURN_IF_ERROR(ToTf(table->table().BeginWrites(&writes)));
              may_begin = writes != nullptr;
              if (!may_begin) return tensorflow::errors::Unavailable("");
              *created = new RowWritesResource(std::move(writes));
              return tensorflow::Status();
            });
    if (may_begin) return then(status, RowWritesRef(found));
    // Once that is true, nothing of this step may be touched any more.
    if (table->table().WaitForWrites([context, table, then] {
          (*context->runner())([context, table, then] {
            BeginWritesOfStep(context, table, then);
          });
        })) {
      return;
    }
  }
}

}  // namespace mxrec_ops

#endif  // MXREC_OPS_ROW_WRITES_H_
