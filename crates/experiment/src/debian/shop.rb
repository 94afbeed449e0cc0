# Orders of a shop: made up, grouped, sorted, reported; and some arithmetic with memory.

Item = Struct.new(:name, :price, :kind)
Order = Struct.new(:customer, :items, :day) do
  def total = items.sum(&:price)
end

class Numbers
  def initialize(seed) = @state = seed

  def below(limit)
    @state = (@state * 1_664_525 + 1_013_904_223) & 0xffffffff
    (@state >> 10) % limit
  end
end

numbers = Numbers.new(5)
kinds = %i[book tool food game]
catalogue = (1..120).map { |number| Item.new("thing #{number}", 1 + numbers.below(500), kinds[numbers.below(4)]) }
orders = (1..4500).map do
  items = Array.new(1 + numbers.below(5)) { catalogue[numbers.below(catalogue.size)] }
  Order.new("customer #{numbers.below(200)}", items, numbers.below(365))
end

by_customer = orders.group_by(&:customer).transform_values { |own| own.sum(&:total) }
best = by_customer.sort_by { |name, total| [-total, name] }.first(10)
best.each { |name, total| puts format("%-14s %8d", name, total) }

by_kind = orders.flat_map(&:items).each_with_object(Hash.new(0)) { |item, sums| sums[item.kind] += item.price }
puts by_kind.sort.map { |kind, sum| "#{kind}=#{sum}" }.join(", ")

report = orders.map { |order| "#{order.day}: #{order.customer} bought #{order.items.map(&:name).join(' and ')}" }
busy = report.grep(/thing (\d)\1\b/).map { |line| line.gsub(/thing (\d+)/) { "no. #{$1.to_i * 3}" }.capitalize }
puts busy.size, busy.minmax

lengths = { 1 => 1 }
length = lambda do |number|
  lengths[number] ||= 1 + length.call(number.even? ? number / 2 : 3 * number + 1)
end
puts (1..6000).max_by { |number| length.call(number) }

sieve = Array.new(30_001, true)
(2..173).each { |number| (number * number).step(30_000, number) { |other| sieve[other] = false } if sieve[number] }
puts (2..30_000).count { |number| sieve[number] }
