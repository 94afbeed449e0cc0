-- A board that lives, permutations from coroutines, sorting, and templates that are filled in.

local state = 42
local function random(limit)
  state = (state * 69069 + 1) & 0xffffffff
  return (state >> 9) % limit
end

local function step(board, size)
  local after = {}
  for row = 1, size do
    local own = {}
    for column = 1, size do
      local alive = 0
      for near = row - 1, row + 1 do
        local line = board[near]
        if line then
          alive = alive + (line[column - 1] or 0) + (line[column] or 0) + (line[column + 1] or 0)
        end
      end
      if alive == 3 or (alive == 4 and board[row][column] == 1) then own[column] = 1 else own[column] = 0 end
    end
    after[row] = own
  end
  return after
end

local function permutations(items, count)
  count = count or #items
  if count <= 1 then
    coroutine.yield(items)
  else
    for place = 1, count do
      items[place], items[count] = items[count], items[place]
      permutations(items, count - 1)
      items[place], items[count] = items[count], items[place]
    end
  end
end

local Heap = {}
Heap.__index = Heap

function Heap.new(before) return setmetatable({ before = before }, Heap) end

function Heap:push(item)
  self[#self + 1] = item
  local place = #self
  while place > 1 and self.before(self[place], self[place // 2]) do
    self[place], self[place // 2] = self[place // 2], self[place]
    place = place // 2
  end
end

function Heap:pop()
  local first = self[1]
  self[1] = self[#self]
  self[#self] = nil
  local place = 1
  while true do
    local least = place
    for child = 2 * place, 2 * place + 1 do
      if self[child] and self.before(self[child], self[least]) then least = child end
    end
    if least == place then return first end
    self[place], self[least] = self[least], self[place]
    place = least
  end
end

local size, board = 48, {}
for row = 1, size do
  board[row] = {}
  for column = 1, size do board[row][column] = random(3) == 0 and 1 or 0 end
end
for _ = 1, 16 do board = step(board, size) end
local alive = 0
for _, line in ipairs(board) do for _, cell in ipairs(line) do alive = alive + cell end end
print("alive", alive)

local seen = 0
for items in coroutine.wrap(function() permutations({ 1, 2, 3, 4, 5, 6, 7 }) end) do
  if items[1] < items[2] and items[3] > items[4] then seen = seen + 1 end
end
print("permutations", seen)

local heap = Heap.new(function(one, other) return one.rank < other.rank end)
for number = 1, 6000 do heap:push({ rank = random(1 << 20), name = "item" .. number }) end
local longest = ""
for _ = 1, 6000 do
  local item = heap:pop()
  if #item.name >= #longest then longest = item.name end
end
print("heap", longest)

local words = {}
for number = 1, 2500 do
  local values = { name = "user" .. random(100), count = random(1000), place = number }
  words[number] = ("$name has $count at $place, $missing"):gsub("%$(%w+)", values)
end
table.sort(words)
print(words[1], words[#words])
