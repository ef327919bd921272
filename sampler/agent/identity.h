/*
 * Who an isolate is: account, worker, version from its service name, the configuration, and the
 * hash of its code. The registry is for any thread; the rest is pure.
 */
#ifndef SAMPLER_AGENT_IDENTITY_H
#define SAMPLER_AGENT_IDENTITY_H

#include "sampler/agent/config.h"
#include "sampler/sampler.h"

struct ef_identity {
    char account[EF_AGENT_NAME_BYTES];
    char worker[EF_AGENT_NAME_BYTES];
    char version[EF_AGENT_NAME_BYTES]; /* "" = only its code says */
    char region[EF_AGENT_NAME_BYTES];
};

/*
 * Matches a whole text: '*' stands for anything, {account} {worker} {version} {region} for one
 * character or more, as few as possible, and hand it over (names longer than the wire allows do not
 * match). identity NULL: matching only. On failure identity is untouched.
 */
bool ef_pattern_match(const char *pattern, const char *text, struct ef_identity *identity);
/* EF_EINVAL for a '{' that begins none of the names above. */
EF_MUST_USE ef_rc ef_pattern_check(const char *pattern, struct ef_err *err);

/* Whether a rule speaks of this isolate (its runtime and service pattern). */
bool ef_rule_matches(const struct ef_rule *rule, const char *runtime,
                     const struct ef_listed *listed);
/*
 * Names by: the rule's fields, else what its service pattern captures, else the first mapping that
 * matches (its fixed fields first), else account "default" and the service as worker.
 */
void ef_identity_find(const struct ef_config *config, const struct ef_rule *rule,
                      const char *runtime, const struct ef_listed *listed, struct ef_identity *ret);

/* Code hashes seen behind (account, worker, version), so that other code under the same name is
 * kept apart. At most names_max; beyond that versions are taken as named. */
struct ef_registry;
EF_MUST_USE ef_rc ef_registry_open(size_t names_max, struct ef_registry **ret, struct ef_err *err);
void ef_registry_free(struct ef_registry *registry);
/*
 * Writes the version to publish: the name; "<name>+<8 digits>" when the code differs from
 * `expected` (or from what was seen first when that is ""); the first 12 digits of the hash without
 * a name; "unknown" without both. True when the code differs from what the name stands for.
 */
bool ef_registry_version(struct ef_registry *registry, const struct ef_identity *identity,
                         const char *expected, const char *script_hash,
                         char ret_version[EF_AGENT_NAME_BYTES]);

#endif
