// MxRecApplyAdamByAddressMany: Adam on all rows of several tables.
#include "apply_ops.h"

namespace mxrec_ops {

REGISTER_OP("MxRecApplyAdamByAddressMany")
    .MXREC_UPDATE_MANY()
    .MXREC_ADAM_HYPERPARAMETERS()
    .Doc(UpdateManyDoc("MxRecApplyAdamByAddress"));

REGISTER_KERNEL_BUILDER(
    Name("MxRecApplyAdamByAddressMany").Device(tensorflow::DEVICE_CPU),
    ApplyManyOp<AdamRule>);

}  // namespace mxrec_ops
