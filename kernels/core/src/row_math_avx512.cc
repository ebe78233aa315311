#define MXREC_ROW_MATH kRowMathAvx512
#include "row_math.inc"
