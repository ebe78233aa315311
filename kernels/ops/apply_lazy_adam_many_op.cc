// MxRecApplyLazyAdamByAddressMany: LazyAdam on several tables.
#include "apply_ops.h"

namespace mxrec_ops {

REGISTER_OP("MxRecApplyLazyAdamByAddressMany")
    .MXREC_UPDATE_MANY()
    .MXREC_LAZY_ADAM_HYPERPARAMETERS()
    .Doc(UpdateManyDoc("MxRecApplyLazyAdamByAddress"));

REGISTER_KERNEL_BUILDER(
    Name("MxRecApplyLazyAdamByAddressMany").Device(tensorflow::DEVICE_CPU),
    ApplyManyOp<LazyAdamRule>);

}  // namespace mxrec_ops
