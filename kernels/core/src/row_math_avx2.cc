#define MXREC_ROW_MATH kRowMathAvx2
#include "row_math.inc"
