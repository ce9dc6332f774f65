#include "convert.h"

#include "api.h"

TPT_API void tpt_narrow(const float* from, uint16_t* to, int64_t count) { TPT_CHOOSE(narrow_all)(from, to, count); }
