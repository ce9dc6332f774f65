// Which table of functions the library was built for.
#include "api.h"

TPT_API const char* tpt_built_for() { return TPT_ABI; }
