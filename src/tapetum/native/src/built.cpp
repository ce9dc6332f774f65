// What the library was built of; CMakeLists.txt says how the digests are made.
#include "api.h"

TPT_API const char* tpt_built_for() { return TPT_TABLE; }     // which table of functions

TPT_API const char* tpt_built_from() { return TPT_SOURCES; }  // which sources
