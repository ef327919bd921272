/*
 * Decides nothing: the table of options.def in memory. Any thread.
 */
#include "sampler/agent/options.h"

const struct ef_option ef_agent_option_table[] = {
#define X(...) EF_OPTION_ROW(struct ef_agent_options, __VA_ARGS__)
#include "sampler/agent/options.def"
#undef X
};
const size_t ef_agent_option_count = EF_COUNT_OF(ef_agent_option_table);
