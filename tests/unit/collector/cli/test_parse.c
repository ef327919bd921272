/*
 * Repeated options, the order flag - environment - default, and finding commands by their words.
 */
#include "tests/support/ef_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collector/cli/cli.h"

#define ARGV_MAX 80

struct line {
    char *argv[ARGV_MAX + 1];
    int argc;
};

static struct line
split(char *text)
{
    struct line line = {{NULL}, 0};

    for (char *word = strtok(text, " "); word != NULL; word = strtok(NULL, " ")) {
        assert_true(line.argc < ARGV_MAX);
        line.argv[line.argc++] = word;
    }
    return line;
}

static const struct ef_cli_command *
command_named(const char *first, const char *second)
{
    char words[2][32];
    char *argv[] = {words[0], words[1], NULL};
    int count;

    snprintf(words[0], sizeof(words[0]), "%s", first);
    snprintf(words[1], sizeof(words[1]), "%s", second);
    return ef_cli_command_find(second[0] != '\0' ? 2 : 1, argv, &count);
}

static ef_rc
parse(struct ef_cli *cli, char *text, struct ef_err *err)
{
    struct line line = split(text);
    bool help, version;
    int words;

    *cli = (struct ef_cli){0};
    cli->command = ef_cli_command_find(line.argc - 1, line.argv + 1, &words);
    assert_non_null(cli->command);
    return ef_cli_parse(cli, line.argc - words, line.argv + words, &help, &version, err);
}

static void
repeated_versions_are_all_kept_in_order(void **state)
{
    char text[] = "everflame top --version a --worker-id w --version=b --limit 3 --version c";
    struct ef_cli cli;
    struct ef_err err = {0};

    (void)state;
    assert_int_equal(parse(&cli, text, &err), EF_OK);
    assert_int_equal(cli.versions.count, 3);
    assert_string_equal(cli.versions.items[0], "a");
    assert_string_equal(cli.versions.items[1], "b");
    assert_string_equal(cli.versions.items[2], "c");
    assert_string_equal(cli.values.worker_id, "w");
    assert_int_equal(cli.values.limit, 3);
}

/* Goal: a value that looks like the flag, and what follows "--", are left alone. */
static void
values_and_words_after_the_end_are_not_taken_for_flags(void **state)
{
    char text[] = "everflame import --worker-id --version --version v -- --version x";
    struct ef_cli cli;
    struct ef_err err = {0};

    (void)state;
    assert_int_equal(parse(&cli, text, &err), EF_OK);
    assert_string_equal(cli.values.worker_id, "--version");
    assert_int_equal(cli.versions.count, 1);
    assert_string_equal(cli.values.version, "v");
    assert_int_equal(cli.argument_count, 2);
    assert_string_equal(cli.arguments[0], "--version");
    assert_string_equal(cli.arguments[1], "x");
}

static void
similar_names_are_not_taken(void **state)
{
    char text[] = "everflame top --versions a";
    struct ef_cli cli;
    struct ef_err err = {0};

    (void)state;
    assert_int_equal(parse(&cli, text, &err), EF_EUSAGE);
    assert_non_null(strstr(err.msg, "do you mean '--version'?"));
}

static void
missing_empty_and_too_many_values_are_refused(void **state)
{
    char missing[] = "everflame top --version", empty[] = "everflame top --version=";
    char many[70 * 16] = "everflame top";
    char longer[400] = "everflame top --version ";
    struct ef_cli cli;
    struct ef_err err = {0};

    (void)state;
    assert_int_equal(parse(&cli, missing, &err), EF_EUSAGE);
    assert_int_equal(parse(&cli, empty, &err), EF_EUSAGE);
    for (int i = 0; i <= EF_CLI_LIST_MAX; i++)
        snprintf(many + strlen(many), sizeof(many) - strlen(many), " --version=x");
    assert_int_equal(parse(&cli, many, &err), EF_EUSAGE);
    assert_non_null(strstr(err.msg, "at most 64"));
    memset(longer + strlen(longer), 'x', 300);
    assert_int_equal(parse(&cli, longer, &err), EF_EUSAGE);
}

static void
flag_wins_over_environment_over_default(void **state)
{
    char none[] = "everflame top", flag[] = "everflame top --url http://flag";
    struct ef_cli cli;
    struct ef_err err = {0};

    (void)state;
    unsetenv("EVERFLAME_URL");
    assert_int_equal(parse(&cli, none, &err), EF_OK);
    assert_string_equal(cli.values.url, "http://127.0.0.1:4680");
    setenv("EVERFLAME_URL", "http://environment", 1);
    setenv("EVERFLAME_LIMIT", "nonsense", 1); /* not among ours: not read */
    memcpy(none, "everflame top", sizeof(none));
    assert_int_equal(parse(&cli, none, &err), EF_OK);
    assert_string_equal(cli.values.url, "http://environment");
    assert_int_equal(parse(&cli, flag, &err), EF_OK);
    assert_string_equal(cli.values.url, "http://flag");
    unsetenv("EVERFLAME_URL");
    unsetenv("EVERFLAME_LIMIT");
}

static void
wrong_number_of_words_is_refused(void **state)
{
    char few[] = "everflame convert a", many[] = "everflame convert a b c";
    struct ef_cli cli;
    struct ef_err err = {0};

    (void)state;
    assert_int_equal(parse(&cli, few, &err), EF_EUSAGE);
    assert_non_null(strstr(err.msg, "IN OUT"));
    assert_int_equal(parse(&cli, many, &err), EF_EUSAGE);
    assert_non_null(strstr(err.msg, "'c'"));
}

static void
commands_are_found_by_all_their_words(void **state)
{
    (void)state;
    assert_string_equal(command_named("top", "")->words, "top");
    assert_string_equal(command_named("workers", "list")->words, "workers list");
    assert_null(command_named("workers", ""));
    assert_null(command_named("workers", "versions"));
    assert_null(command_named("to", ""));
}

/* Goal: each table's defaults pass the table's own checks (asserted inside), each command is whole.
 */
static void
every_command_has_sound_defaults_and_texts(void **state)
{
    (void)state;
    for (size_t i = 0; ef_cli_command_at(i) != NULL; i++) {
        const struct ef_cli_command *command = ef_cli_command_at(i);
        struct ef_cli_values values;
        size_t examples = 0;
        ef_option_defaults(command->options, command->option_count, &values);
        for (const char *at = command->examples; *at != '\0'; at++)
            examples += *at == '\n';
        assert_in_range(examples, 2, 3);
        assert_int_equal(command->sentence[strlen(command->sentence) - 1], '.');
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(repeated_versions_are_all_kept_in_order),
        cmocka_unit_test(values_and_words_after_the_end_are_not_taken_for_flags),
        cmocka_unit_test(similar_names_are_not_taken),
        cmocka_unit_test(missing_empty_and_too_many_values_are_refused),
        cmocka_unit_test(flag_wins_over_environment_over_default),
        cmocka_unit_test(wrong_number_of_words_is_refused),
        cmocka_unit_test(commands_are_found_by_all_their_words),
        cmocka_unit_test(every_command_has_sound_defaults_and_texts),
    };

    return cmocka_run_group_tests_name("collector/cli/parse", tests, NULL, NULL);
}
