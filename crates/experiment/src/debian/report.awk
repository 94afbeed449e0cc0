# Sums of a table: KEY GROUP NUMBER NUMBER WORDS...

function longest_run(text,    i, run, best) {
    run = best = 1
    for (i = 2; i <= length(text); i++) {
        run = substr(text, i, 1) == substr(text, i - 1, 1) ? run + 1 : 1
        if (run > best) best = run
    }
    return best
}

{
    sum[$2] += $3
    square[$2] += $3 * $3
    count[$2]++
    if (!($2 in largest) || $4 > largest[$2]) { largest[$2] = $4; where[$2] = $1 }
}

$3 % 7 == 0 {
    n = split($5, parts, /[aeiou]+/)
    pieces[n]++
    gsub(/[^a-z]/, "", $5)
    runs[longest_run($5)]++
}

$5 ~ /^(.a|.o).*[nrs]$/ { matched++; last = toupper(substr($5, 1, 1)) substr($5, 2) }

END {
    for (group in count) {
        mean = sum[group] / count[group]
        printf "%-8s %7d %10.2f %10.2f %8d %s\n", group, count[group], mean, \
            sqrt(square[group] / count[group] - mean * mean), largest[group], where[group]
    }
    for (n in pieces) print "pieces", n, pieces[n]
    for (n in runs) print "runs", n, runs[n]
    print matched, last
}
