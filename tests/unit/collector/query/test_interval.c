/*
 * Whether intervals cover the truth as often as they say, by simulation with a fixed seed.
 */
#include "tests/support/ef_test.h"

#include "collector/query/interval.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>

#define SAMPLES_PER_BURST 300 /* 100 Hz, 10 s, 30 % busy: research/statistics §2 */
#define ACTIVITY_CV 0.5
#define CORRELATION 0.5 /* of activity with the share */

struct random {
    uint64_t state;
};

/* xorshift64*; fixed seeds make the test repeatable. */
static double
uniform(struct random *random)
{
    random->state ^= random->state >> 12;
    random->state ^= random->state << 25;
    random->state ^= random->state >> 27;
    return (double)((random->state * UINT64_C(0x2545F4914F6CDD1D)) >> 11) / 9007199254740992.0;
}

static double
normal(struct random *random)
{
    double one = uniform(random);

    while (one <= 0)
        one = uniform(random);
    return sqrt(-2 * log(one)) * cos(6.283185307179586 * uniform(random));
}

static double
poisson(struct random *random, double mean)
{
    double limit = exp(-mean), product = 1;
    int count = -1;

    if (mean > 60)
        return fmax(0, floor(mean + sqrt(mean) * normal(random) + 0.5));
    do {
        product *= uniform(random);
        count++;
    } while (product > limit);
    return count;
}

/* One burst: log-normal share and activity, Poisson samples. */
static void
burst(struct random *random, double share, double cv, double *ret_y, double *ret_n)
{
    double sigma = sqrt(log(1 + cv * cv)),
           activity_sigma = sqrt(log(1 + ACTIVITY_CV * ACTIVITY_CV));
    double z = normal(random);
    double z2 = CORRELATION * z + sqrt(1 - CORRELATION * CORRELATION) * normal(random);
    double activity = exp(activity_sigma * z2 - activity_sigma * activity_sigma / 2);
    double burst_share = fmin(1, share * exp(sigma * z - sigma * sigma / 2));

    *ret_y = poisson(random, SAMPLES_PER_BURST * activity * burst_share);
    *ret_n = *ret_y + poisson(random, SAMPLES_PER_BURST * activity * (1 - burst_share));
}

/* Ratio of means over endless bursts: E[activity × share] / E[activity] of log-normals. */
static double
truth(double share, double cv)
{
    return share *
           exp(CORRELATION * sqrt(log(1 + cv * cv)) * sqrt(log(1 + ACTIVITY_CV * ACTIVITY_CV)));
}

static struct ef_share
estimate(struct random *random, double share, double cv, int bursts)
{
    double y[EF_INTERVAL_UNITS_MAX] = {0}, n[EF_INTERVAL_UNITS_MAX] = {0};
    int units = bursts < EF_INTERVAL_UNITS_MAX ? bursts : EF_INTERVAL_UNITS_MAX;
    struct ef_ratio ratio = {0};

    for (int i = 0; i < bursts; i++) {
        double burst_y, burst_n;
        burst(random, share, cv, &burst_y, &burst_n);
        y[(long)i * units / bursts] += burst_y;
        n[(long)i * units / bursts] += burst_n;
    }
    for (int i = 0; i < units; i++) {
        ratio.y += y[i];
        ratio.n += n[i];
        ratio.yy += y[i] * y[i];
        ratio.yn += y[i] * n[i];
        ratio.nn += n[i] * n[i];
        ratio.units += n[i] > 0;
    }
    ratio.hits = ratio.y;
    ratio.samples = ratio.n;
    return ef_interval_share(&ratio);
}

static double
coverage(double share, double cv, int bursts, int runs)
{
    struct random random = {UINT64_C(0x9E3779B97F4A7C15)};
    double true_share = truth(share, cv);
    int covered = 0;

    for (int i = 0; i < runs; i++) {
        struct ef_share got = estimate(&random, share, cv, bursts);
        assert_true(0 <= got.low && got.low <= got.share);
        assert_true(got.share <= got.high && got.high <= 1);
        covered += got.low <= true_share && true_share <= got.high;
    }
    return (double)covered / runs;
}

/*
 * Goal: 92 to 98 % with 100 or more bursts. Three standard errors of the simulation (0.4 % at 2,000
 * runs) lie inside the bar.
 */
static void
share_intervals_cover_with_many_bursts(void **state)
{
    static const double shares[] = {0.0005, 0.005, 0.05, 0.3}, cvs[] = {0, 0.25, 0.5};

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        for (size_t j = 0; j < 3; j++) {
            double covered = coverage(shares[i], cvs[j], 100, 2000);
            print_message("share %g, cv %g, 100 bursts: %.3f\n", shares[i], cvs[j], covered);
            assert_true(covered >= 0.92 && covered <= 0.98);
        }
    }
    for (size_t i = 0; i < 4; i++) {
        double covered = coverage(shares[i], 0.5, 300, 1000);
        print_message("share %g, cv 0.5, 300 bursts: %.3f\n", shares[i], covered);
        assert_true(covered >= 0.92 && covered <= 0.98);
    }
}

/* Few units: too wide is allowed, far too narrow is not. */
static void
share_intervals_do_not_promise_too_much_with_few_bursts(void **state)
{
    static const int bursts[] = {1, 2, 3, 5, 8, 12, 20, 40};

    (void)state;
    for (size_t i = 0; i < sizeof(bursts) / sizeof(bursts[0]); i++) {
        double small = coverage(0.005, 0.5, bursts[i], 2000);
        double large = coverage(0.05, 0.5, bursts[i], 2000);
        print_message("%d bursts: share 0.5 %%: %.3f, 5 %%: %.3f\n", bursts[i], small, large);
        assert_true(small >= 0.92);
        assert_true(large >= 0.89);
    }
}

/* A binomial interval would be a tenth as wide here; ours must not be. */
static void
share_interval_widens_with_variation_between_bursts(void **state)
{
    struct random random = {77};
    struct ef_share steady = estimate(&random, 0.05, 0, 200);
    struct ef_share varying = estimate(&random, 0.05, 1, 200);

    (void)state;
    assert_true(log(varying.high / varying.low) > 2 * log(steady.high / steady.low));
}

static void
share_without_a_hit_has_an_upper_bound(void **state)
{
    struct ef_ratio ratio = {.n = 1000, .nn = 100000, .samples = 1000, .units = 10};
    struct ef_share none = ef_interval_share(&ratio);
    struct ef_share all;

    (void)state;
    assert_true(none.share == 0 && none.low == 0);
    assert_true(none.high >= 0.003 && none.high < 0.006);
    ratio.y = ratio.n;
    ratio.yy = ratio.yn = ratio.nn;
    ratio.hits = ratio.samples;
    all = ef_interval_share(&ratio);
    assert_true(all.share == 1 && all.high == 1);
    assert_true(all.low > 0.99 && all.low < 1);
    all = ef_interval_share(&(struct ef_ratio){0});
    assert_true(all.share == 0 && all.low == 0 && all.high == 1);
}

/* Reference: tables of Student's t (NIST/SEMATECH e-Handbook 1.3.6.7.2). */
static void
t_quantiles_are_those_of_the_tables(void **state)
{
    static const double reference[][2] = {{1, 12.706}, {5, 2.571},  {11, 2.201}, {15, 2.131},
                                          {30, 2.042}, {63, 1.998}, {100, 1.984}};

    (void)state;
    for (size_t i = 0; i < sizeof(reference) / sizeof(reference[0]); i++)
        assert_true(fabs(ef_interval_t(reference[i][0]) - reference[i][1]) < 0.001);
}

/* Total: Poisson ticks in full coverage; slow cycles do not widen it. */
static void
total_interval_follows_samples_and_coverage(void **state)
{
    double flat[64], cycle[64], noise[64], low, high, low2, high2;

    (void)state;
    for (int i = 0; i < 64; i++) {
        flat[i] = 100;
        cycle[i] = 100 + 60 * sin(i * 6.283 / 64);
        noise[i] = i % 2 == 0 ? 40 : 160;
    }
    ef_interval_total(flat, 64, 10000, 1, &low, &high);
    assert_true(low > 0.97 && low < 0.99 && high > 1.01 && high < 1.03);
    ef_interval_total(cycle, 64, 10000, 0.01, &low, &high);
    ef_interval_total(noise, 64, 10000, 0.01, &low2, &high2);
    assert_true(high < 1.05);
    assert_true(high2 > 1.15);
    ef_interval_total(noise, 64, 10000, 1, &low2, &high2);
    assert_true(high2 < 1.03);
    ef_interval_total(NULL, 0, 0, 0, &low, &high);
    assert_true(low == 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(share_intervals_cover_with_many_bursts),
        cmocka_unit_test(share_intervals_do_not_promise_too_much_with_few_bursts),
        cmocka_unit_test(share_interval_widens_with_variation_between_bursts),
        cmocka_unit_test(share_without_a_hit_has_an_upper_bound),
        cmocka_unit_test(t_quantiles_are_those_of_the_tables),
        cmocka_unit_test(total_interval_follows_samples_and_coverage),
    };

    return cmocka_run_group_tests_name("interval", tests, NULL, NULL);
}
