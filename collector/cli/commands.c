/*
 * Decides which command the words of a command line mean. Must not know what a command does. Main
 * thread.
 */
#include "collector/cli/cli.h"

#include <string.h>

#define ROW(...) EF_OPTION_ROW(struct ef_cli_values, __VA_ARGS__)
#define SERVER EF_CLI_OPT_URL(ROW) EF_CLI_OPT_TIMEOUT(ROW)
#define SELECTOR                                                                                   \
    EF_CLI_OPT_WORKER_ID(ROW)                                                                      \
    EF_CLI_OPT_VERSIONS(ROW)                                                                       \
    EF_CLI_OPT_ACCOUNT(ROW)                                                                        \
    EF_CLI_OPT_PROFILE_TYPE(ROW)                                                                   \
    EF_CLI_OPT_FROM(ROW)                                                                           \
    EF_CLI_OPT_TO(ROW)

/* clang-format off */
/* Ends each table, so that a command without options has an array too; not counted. */
#define END {0}

static const struct ef_option ef_cli_options_workers_list[] = {
    EF_CLI_OPT_JSON(ROW) SERVER END};
static const struct ef_option ef_cli_options_workers_versions_list[] = {
    EF_CLI_OPT_WORKER_ID(ROW) EF_CLI_OPT_ACCOUNT(ROW) EF_CLI_OPT_JSON(ROW) SERVER END};
static const struct ef_option ef_cli_options_top[] = {
    SELECTOR EF_CLI_OPT_LIMIT(ROW) EF_CLI_OPT_JSON(ROW) SERVER END};
static const struct ef_option ef_cli_options_query[] = {
    SELECTOR EF_CLI_OPT_FORMAT(ROW) EF_CLI_OPT_OUTPUT(ROW) EF_CLI_OPT_FORCE(ROW) SERVER END};
static const struct ef_option ef_cli_options_timeline[] = {
    SELECTOR EF_CLI_OPT_STEP(ROW) EF_CLI_OPT_JSON(ROW) SERVER END};
static const struct ef_option ef_cli_options_convert[] = {
    EF_CLI_OPT_FROM_FORMAT(ROW) EF_CLI_OPT_TO_FORMAT(ROW) EF_CLI_OPT_FORCE(ROW) END};
static const struct ef_option ef_cli_options_import[] = {
    EF_CLI_OPT_WORKER_ID(ROW) EF_CLI_OPT_VERSION(ROW) EF_CLI_OPT_ACCOUNT(ROW)
    EF_CLI_OPT_REGION(ROW) EF_CLI_OPT_AT(ROW) EF_CLI_OPT_DURATION(ROW)
    EF_CLI_OPT_IMPORT_FORMAT(ROW) EF_CLI_OPT_IMPORT_TYPE(ROW) SERVER END};
static const struct ef_option ef_cli_options_collect[] = {
    EF_CLI_OPT_WORKER_ID(ROW) EF_CLI_OPT_VERSION(ROW) EF_CLI_OPT_ACCOUNT(ROW) SERVER END};
static const struct ef_option ef_cli_options_status[] = {
    EF_CLI_OPT_JSON(ROW) SERVER END};
static const struct ef_option ef_cli_options_help[] = {
    EF_CLI_OPT_MARKDOWN(ROW) END};
static const struct ef_option ef_cli_options_version[] = {END};
static const struct ef_option ef_cli_options_completions[] = {END};
/* clang-format on */

static const struct ef_cli_command commands[] = {
#define X(id, words, arguments, count_min, count_max, shown, sentence, examples)                   \
    {words,                                                                                        \
     arguments,                                                                                    \
     count_min,                                                                                    \
     count_max,                                                                                    \
     shown,                                                                                        \
     sentence,                                                                                     \
     examples,                                                                                     \
     ef_cli_options_##id,                                                                          \
     EF_COUNT_OF(ef_cli_options_##id) - 1,                                                         \
     ef_cli_##id},
#include "collector/cli/commands.def"
#undef X
};

const struct ef_cli_command *
ef_cli_command_at(size_t index)
{
    return index < EF_COUNT_OF(commands) ? &commands[index] : NULL;
}

/* How many of the arguments are the first words of `words`; *ret_all says whether it ended. */
static int
match_words(const char *words, int argc, char *const *argv, bool *ret_all)
{
    int matched = 0;

    while (*words != '\0' && matched < argc) {
        size_t len = strcspn(words, " ");
        if (strlen(argv[matched]) != len || memcmp(argv[matched], words, len) != 0)
            break;
        matched++;
        words += len;
        words += strspn(words, " ");
    }
    *ret_all = *words == '\0';
    return matched;
}

const struct ef_cli_command *
ef_cli_command_find(int argc, char *const *argv, int *ret_word_count)
{
    for (size_t i = 0; i < EF_COUNT_OF(commands); i++) {
        bool all;
        int matched = match_words(commands[i].words, argc, argv, &all);
        if (all) {
            *ret_word_count = matched;
            return &commands[i];
        }
    }
    return NULL;
}

bool
ef_cli_command_is_group(int argc, char *const *argv, int *ret_word_count)
{
    int best = 0;

    for (size_t i = 0; i < EF_COUNT_OF(commands); i++) {
        bool all;
        int matched = match_words(commands[i].words, argc, argv, &all);
        if (matched > best)
            best = matched;
    }
    *ret_word_count = best;
    return best > 0;
}

/* The word at `position` of a command whose first `position` words are the arguments'. */
static bool
word_at(const struct ef_cli_command *command, int position, char *const *argv, char *buf,
        size_t len)
{
    bool all;
    const char *words = command->words;

    if (match_words(words, position, argv, &all) != position || all)
        return false;
    for (int i = 0; i < position; i++)
        words += strcspn(words, " ") + 1;
    snprintf(buf, len, "%.*s", (int)strcspn(words, " "), words);
    return true;
}

int
ef_cli_command_unknown(int argc, char *const *argv)
{
    char words[EF_COUNT_OF(commands)][32];
    const char *candidates[EF_COUNT_OF(commands)];
    size_t count = 0;
    int known;
    char prefix[64] = "";
    const char *nearest;

    EF_IGNORE(ef_cli_command_is_group(argc, argv, &known), "only the count is wanted");
    for (int i = 0; i < known; i++)
        snprintf(prefix + strlen(prefix), sizeof(prefix) - strlen(prefix), "%s ", argv[i]);
    for (size_t i = 0; i < EF_COUNT_OF(commands); i++) {
        if (word_at(&commands[i], known, argv, words[count], sizeof(words[count]))) {
            candidates[count] = words[count];
            count++;
        }
    }
    if (known >= argc || argv[known][0] == '-') {
        ef_cli_say("'everflame %s...' needs a further word; 'everflame %s--help' lists them",
                   prefix, prefix);
        return EF_CLI_USAGE;
    }
    nearest = ef_nearest_word(argv[known], candidates, count);
    if (nearest != NULL)
        ef_cli_say("there is no command '%s%.64s'; do you mean '%s%s'? ('everflame help' lists "
                   "them)",
                   prefix, argv[known], prefix, nearest);
    else
        ef_cli_say("there is no command '%s%.64s'; 'everflame help' lists them", prefix,
                   argv[known]);
    return EF_CLI_USAGE;
}
