/* Quicksort and merge sort of SIZE records, both through a comparison that the caller passes. */
#include "common.h"

struct record {
    uint64_t key;
    uint32_t group, number;
    char name[16];
};

typedef int (*comparison)(const struct record *, const struct record *);

static int by_key(const struct record *a, const struct record *b)
{
    return (a->key > b->key) - (a->key < b->key);
}

static int by_name(const struct record *a, const struct record *b)
{
    return strcmp(a->name, b->name);
}

static int by_group(const struct record *a, const struct record *b)
{
    return (a->group > b->group) - (a->group < b->group);
}

static void swap(struct record *a, struct record *b)
{
    struct record kept = *a;
    *a = *b;
    *b = kept;
}

static void insertion_sort(struct record *records, size_t count, comparison compare)
{
    for (size_t i = 1; i < count; i++)
        for (size_t j = i; j > 0 && compare(&records[j], &records[j - 1]) < 0; j--)
            swap(&records[j], &records[j - 1]);
}

/* Around the median of three, the smaller part by recursion, the larger by the loop. */
static void quick_sort(struct record *records, size_t count, comparison compare)
{
    while (count > 12) {
        struct record *middle = &records[count / 2], *last = &records[count - 1];
        if (compare(middle, records) < 0)
            swap(middle, records);
        if (compare(last, middle) < 0)
            swap(last, middle);
        if (compare(middle, records) < 0)
            swap(middle, records);
        struct record pivot = *middle;
        size_t left = 0, right = count - 1;
        for (;;) {
            while (compare(&records[left], &pivot) < 0)
                left++;
            while (compare(&pivot, &records[right]) < 0)
                right--;
            if (left >= right)
                break;
            swap(&records[left++], &records[right--]);
        }
        size_t first = right + 1;
        if (first < count - first) {
            quick_sort(records, first, compare);
            records += first;
            count -= first;
        } else {
            quick_sort(records + first, count - first, compare);
            count = first;
        }
    }
    insertion_sort(records, count, compare);
}

/* Keeps the order of equals. */
static void merge_sort(struct record *records, struct record *room, size_t count, comparison compare)
{
    if (count < 2)
        return;
    size_t half = count / 2, left = 0, right = half, next = 0;
    merge_sort(records, room, half, compare);
    merge_sort(records + half, room, count - half, compare);
    memcpy(room, records, half * sizeof *records);
    while (left < half && right < count)
        records[next++] = compare(&records[right], &room[left]) < 0 ? records[right++] : room[left++];
    while (left < half)
        records[next++] = room[left++];
}

static int is_sorted(const struct record *records, size_t count, comparison compare)
{
    for (size_t i = 1; i < count; i++)
        if (compare(&records[i - 1], &records[i]) > 0)
            return 0;
    return 1;
}

static uint64_t digest(const struct record *records, size_t count)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < count; i++)
        hash = (hash ^ records[i].key) * 0x100000001b3u;
    return hash;
}

int main(int argc, char **argv)
{
    size_t count = (size_t)parse_size(argc, argv, "records", 400000, 20000000);
    struct record *records = allocate(count * sizeof *records), *room = allocate(count * sizeof *room);
    uint64_t random = 7;
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = next_random(&random);
        records[i] = (struct record){.key = next_random(&random), .group = bits >> 54, .number = (uint32_t)i};
        for (int letter = 0; letter < 12; letter++)
            records[i].name[letter] = (char)('a' + (bits >> (4 * letter) & 15));
    }
    quick_sort(records, count, by_key);
    int good = is_sorted(records, count, by_key);
    merge_sort(records, room, count, by_name);
    good &= is_sorted(records, count, by_name);
    quick_sort(records, count, by_key);
    merge_sort(records, room, count, by_group);
    good &= is_sorted(records, count, by_group);
    for (size_t i = 1; i < count; i++)
        good &= records[i - 1].group != records[i].group || records[i - 1].key <= records[i].key;
    printf("sort: %zu records, digest %016llx, %s\n", count, (unsigned long long)digest(records, count),
           good ? "sorted" : "WRONG");
    return good ? 0 : 1;
}
