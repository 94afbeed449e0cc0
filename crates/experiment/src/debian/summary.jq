# People and what they did: grouped, summed, renamed and searched.
def median: sort | if length == 0 then null else .[length / 2 | floor] end;
def depth: if type == "array" or type == "object" then 1 + ([.[] | depth] | max // 0) else 0 end;

{
  groups: (
    group_by(.team)
    | map({
        team: .[0].team,
        people: length,
        median: (map(.age) | median),
        words: (map(.note | split(" ") | length) | add),
        tags: (map(.tags[]) | group_by(.) | map({ (.[0]): length }) | add)
      })
  ),
  oldest: (sort_by(-.age, .name) | .[0:5] | map("\(.name) (\(.age))")),
  matching: [ .[] | select(.note | test("^[a-m].*[aeiou]$")) | .name | ascii_upcase ] | unique | length,
  depth: depth,
  leaves: ([ paths(scalars) ] | length),
  total: (reduce .[] as $one (0; . + $one.age * ($one.tags | length)) )
}
