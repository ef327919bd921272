/*
 * The agent's own settings, made from options.def. Read-only after start; any thread.
 */
#ifndef SAMPLER_AGENT_OPTIONS_H
#define SAMPLER_AGENT_OPTIONS_H

#include "proto/base/option.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ef_agent_options {
#define X EF_OPTION_FIELD
#include "sampler/agent/options.def"
#undef X
};

extern const struct ef_option ef_agent_option_table[];
extern const size_t ef_agent_option_count;

#endif
