// MxRecApplyAdagradByAddressMany: Adagrad on several tables.
#include "apply_ops.h"

namespace mxrec_ops {

REGISTER_OP("MxRecApplyAdagradByAddressMany")
    .MXREC_UPDATE_MANY()
    .MXREC_ADAGRAD_HYPERPARAMETERS()
    .Doc(UpdateManyDoc("MxRecApplyAdagradByAddress"));

REGISTER_KERNEL_BUILDER(
    Name("MxRecApplyAdagradByAddressMany").Device(tensorflow::DEVICE_CPU),
    ApplyManyOp<AdagradRule>);

}  // namespace mxrec_ops
