// The C interface: plain functions, plain types. dtype is 0 for float32 and 1 for bfloat16 everywhere.
#pragma once
#define TPT_API extern "C" __attribute__((visibility("default")))
