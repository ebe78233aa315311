// MxRecApplyFtrlByAddressMany: FTRL-proximal on several tables.
#include "apply_ops.h"

namespace mxrec_ops {

REGISTER_OP("MxRecApplyFtrlByAddressMany")
    .MXREC_UPDATE_MANY()
    .MXREC_FTRL_HYPERPARAMETERS()
    .Doc(UpdateManyDoc("MxRecApplyFtrlByAddress"));

REGISTER_KERNEL_BUILDER(
    Name("MxRecApplyFtrlByAddressMany").Device(tensorflow::DEVICE_CPU),
    ApplyManyOp<FtrlRule>);

}  // namespace mxrec_ops
