
-- What a tenant holds in the store: its account. Two keys: members by when they expire (a sorted set of milliseconds),
-- and a hash of member to bytes, with the sum in "#bytes" and the number of members of a kind in "#<kind>". A member is
-- "<kind>:<id>". Limits are checked and the account updated in one step, so gateways cannot pass them together.

local function kind_of(member)
  return '#' .. string.match(member, '^[^:]*')
end

local function release(ends, sizes, member)
  redis.call('ZREM', ends, member)
  local bytes = redis.call('HGET', sizes, member)
  if not bytes then return 0 end
  redis.call('HDEL', sizes, member)
  redis.call('HINCRBY', sizes, '#bytes', whole(0 - tonumber(bytes)))
  redis.call('HINCRBY', sizes, kind_of(member), -1)
  return 1
end

local function release_expired(ends, sizes)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', ends, '-inf', whole(now()))) do release(ends, sizes, member) end
end

local function number_in(hash, field)
  return tonumber(redis.call('HGET', hash, field) or '0') or 0
end

-- Bytes by which a member of so many bytes would break a limit on the account; 0 or less: it fits.
local function excess(sizes, member, bytes, most_bytes)
  return number_in(sizes, '#bytes') - number_in(sizes, member) + bytes - most_bytes
end

local function write_member(ends, sizes, member, bytes, expires)
  local before = redis.call('HGET', sizes, member)
  if not before then redis.call('HINCRBY', sizes, kind_of(member), 1) end
  redis.call('HSET', sizes, member, whole(bytes))
  redis.call('HINCRBY', sizes, '#bytes', whole(bytes - (tonumber(before or '0') or 0)))
  redis.call('ZADD', ends, whole(expires), member)
  local last = redis.call('ZRANGE', ends, -1, -1, 'WITHSCORES')[2]
  for _, key in ipairs({ ends, sizes }) do redis.call('PEXPIREAT', key, whole(tonumber(last) + 1000)) end
end

-- Hold a member, or hold it with other bytes. Answers nil, or the limit that it would break; a limit of 0 is none. What
-- becomes smaller always fits.
local function reserve(ends, sizes, member, bytes, expires, most_members, most_bytes)
  release_expired(ends, sizes)
  local before = redis.call('HGET', sizes, member)
  if not before and most_members > 0 and number_in(sizes, kind_of(member)) >= most_members then return 'members' end
  local grows = bytes > (tonumber(before or '0') or 0)
  if most_bytes > 0 and grows and excess(sizes, member, bytes, most_bytes) > 0 then return 'bytes' end
  write_member(ends, sizes, member, bytes, expires)
  return nil
end

-- Answers the members of the kind, and the bytes of all members.
redis.register_function('omnibus_reserve', function(keys, args)
  local expires = now() + tonumber(args[3])
  local limit = reserve(keys[1], keys[2], args[1], tonumber(args[2]), expires, tonumber(args[4]), tonumber(args[5]))
  if limit then return redis.error_reply('FULL ' .. limit) end
  return { number_in(keys[2], kind_of(args[1])), number_in(keys[2], '#bytes') }
end)

register_always('omnibus_release', function(keys, args)
  local count = 0
  for _, member in ipairs(args) do count = count + release(keys[1], keys[2], member) end
  return count
end)

-- Responses. Keys of these functions: the response, its tenant's responses by when they came, those that are made in the
-- background, the two of the account, the beginning of the keys of responses.

-- The limit that one more response in the background would break. When all places are taken, a tenant with less than an
-- equal part of them still gets one.
local function background_limit(keys, tenant, most, most_of_tenant)
  local counts, total, tenants = { [tenant] = 0 }, 0, 1
  for _, id in ipairs(redis.call('ZRANGE', keys[3], 0, -1)) do
    local found = redis.call('HMGET', keys[6] .. id, 'tenant', 'holder')
    if not found[2] then
      redis.call('ZREM', keys[3], id) -- it has expired
    else
      local name = found[1] or ''
      if not counts[name] then counts[name], tenants = 0, tenants + 1 end
      counts[name], total = counts[name] + 1, total + 1
    end
  end
  if counts[tenant] >= most_of_tenant then return 'tenant_open' end
  if total >= most and counts[tenant] >= math.floor(most / tenants) then return 'open' end
  return nil
end

local function drop_response(keys, id)
  redis.call('DEL', keys[6] .. id)
  redis.call('ZREM', keys[2], id)
  redis.call('ZREM', keys[3], id)
  release(keys[4], keys[5], 'response:' .. id)
end

-- Hold the bytes of a response; the tenant's oldest ones that are over make room, if that suffices.
local function reserve_response(keys, id, bytes, expires, most_bytes)
  local member = 'response:' .. id
  local limit = reserve(keys[4], keys[5], member, bytes, expires, 0, most_bytes)
  if not limit then return nil end
  local missing, old = excess(keys[5], member, bytes, most_bytes), {}
  for _, each in ipairs(redis.call('ZRANGE', keys[2], 0, -1)) do
    if missing <= 0 then break end
    if each ~= id and redis.call('HEXISTS', keys[6] .. each, 'final') == 1 then
      missing = missing - number_in(keys[5], 'response:' .. each)
      table.insert(old, each)
    end
  end
  if missing > 0 then return limit end
  for _, each in ipairs(old) do drop_response(keys, each) end
  return reserve(keys[4], keys[5], member, bytes, expires, 0, most_bytes)
end

-- Arguments: id, tenant, record, holder, final, milliseconds, time of creation, responses kept, 1 for the background, its
-- places, those of a tenant, bytes of the account, bytes that each response counts for besides its own.
redis.register_function('omnibus_store_response', function(keys, args)
  local id, final, lasts = args[1], args[5], tonumber(args[6])
  local opens = args[9] == '1' and final == ''
  if opens then
    local limit = background_limit(keys, args[2], tonumber(args[10]), tonumber(args[11]))
    if limit then return redis.error_reply('FULL ' .. limit) end
  end
  local limit = reserve_response(keys, id, #args[3] + #final + tonumber(args[13]), now() + lasts, tonumber(args[12]))
  if limit then return redis.error_reply('FULL ' .. limit) end
  redis.call('HSET', keys[1], 'record', args[3], 'holder', args[4], 'tenant', args[2])
  if final ~= '' then redis.call('HSET', keys[1], 'final', final) end
  redis.call('PEXPIRE', keys[1], lasts)
  if opens then redis.call('ZADD', keys[3], args[7], id) end
  redis.call('ZADD', keys[2], args[7], id)
  redis.call('PEXPIRE', keys[2], lasts)
  for _, old in ipairs(redis.call('ZRANGE', keys[2], 0, -(tonumber(args[8]) + 1))) do drop_response(keys, old) end
  return 1
end)

-- The one end of a stored response, by its holder; an empty one is anybody. Arguments: id, holder, final, milliseconds,
-- bytes of the account, bytes besides.
register_always('omnibus_finish_response', function(keys, args)
  local found = redis.call('HMGET', keys[1], 'holder', 'final')
  if not found[1] or found[2] or (args[2] ~= '' and found[1] ~= args[2]) then return 0 end
  local bytes = redis.call('HSTRLEN', keys[1], 'record') + #args[3] + tonumber(args[6])
  local limit = reserve_response(keys, args[1], bytes, now() + tonumber(args[4]), tonumber(args[5]))
  if limit then return redis.error_reply('FULL ' .. limit) end
  redis.call('HSET', keys[1], 'final', args[3], 'holder', '')
  redis.call('PEXPIRE', keys[1], args[4])
  redis.call('ZREM', keys[3], args[1])
  return 1
end)

register_always('omnibus_drop_response', function(keys, args)
  local there = redis.call('EXISTS', keys[1])
  drop_response(keys, args[1])
  return there
end)

-- Conversations. Keys of these functions: the conversation, its items, their order, the two of the account, its tenant's
-- conversations by when they came, the beginning of the keys of conversations.

-- Bytes of the items of a conversation. Builds before this one did not count them.
local function items_bytes(conversation, items)
  local known = redis.call('HGET', conversation, 'bytes')
  if known then return tonumber(known) end
  local total = 0
  for _, id in ipairs(redis.call('HKEYS', items)) do total = total + redis.call('HSTRLEN', items, id) end
  return total
end

local function drop_conversation(keys, id)
  local key = keys[7] .. id
  redis.call('ZREM', keys[6], id)
  release(keys[4], keys[5], 'conversation:' .. id)
  return redis.call('DEL', key, key .. ':items', key .. ':order')
end

-- Arguments: id, record, milliseconds, time of creation, conversations kept, bytes of the account, bytes besides.
redis.register_function('omnibus_store_conversation', function(keys, args)
  local id, lasts = args[1], tonumber(args[3])
  local bytes = #args[2] + items_bytes(keys[1], keys[2]) + tonumber(args[7])
  local limit = reserve(keys[4], keys[5], 'conversation:' .. id, bytes, now() + lasts, 0, tonumber(args[6]))
  if limit then return redis.error_reply('FULL ' .. limit) end
  redis.call('HSET', keys[1], 'record', args[2])
  redis.call('PEXPIRE', keys[1], lasts)
  redis.call('ZADD', keys[6], args[4], id)
  redis.call('PEXPIRE', keys[6], lasts)
  for _, old in ipairs(redis.call('ZRANGE', keys[6], 0, -(tonumber(args[5]) + 1))) do drop_conversation(keys, old) end
  return 1
end)

-- Append items. Arguments: id, milliseconds, items and bytes that a conversation may have, bytes of the account, bytes that
-- each item counts for besides its own; then ids and JSON in turn. Answers how many items it has; 0: there is none.
redis.register_function('omnibus_append_items', function(keys, args)
  if redis.call('EXISTS', keys[1]) == 0 then return 0 end
  local added, fresh = 0, 0
  for at = 7, #args, 2 do
    local before = redis.call('HSTRLEN', keys[2], args[at])
    if before == 0 then fresh = fresh + 1 end
    added = added + #args[at + 1] - before
  end
  local count = redis.call('ZCARD', keys[3]) + fresh
  if count > tonumber(args[3]) then return redis.error_reply('FULL items') end
  local bytes = items_bytes(keys[1], keys[2]) + added
  if bytes > tonumber(args[4]) then return redis.error_reply('FULL conversation') end
  local held = bytes + (count + 1) * tonumber(args[6]) + redis.call('HSTRLEN', keys[1], 'record')
  local expires = now() + tonumber(args[2])
  local limit = reserve(keys[4], keys[5], 'conversation:' .. args[1], held, expires, 0, tonumber(args[5]))
  if limit then return redis.error_reply('FULL ' .. limit) end
  for at = 7, #args, 2 do
    local place = redis.call('HINCRBY', keys[1], 'places', 1)
    redis.call('HSET', keys[2], args[at], args[at + 1])
    redis.call('ZADD', keys[3], 'NX', place, args[at])
  end
  redis.call('HSET', keys[1], 'bytes', whole(bytes))
  for set = 1, 3 do redis.call('PEXPIRE', keys[set], args[2]) end
  return redis.call('ZCARD', keys[3])
end)

-- Arguments: the conversation's id, and those of items. Answers how many there were.
register_always('omnibus_drop_items', function(keys, args)
  local bytes, count, freed = items_bytes(keys[1], keys[2]), 0, 0
  for at = 2, #args do
    freed = freed + redis.call('HSTRLEN', keys[2], args[at])
    redis.call('ZREM', keys[3], args[at])
    count = count + redis.call('HDEL', keys[2], args[at])
  end
  if count == 0 then return 0 end
  redis.call('HSET', keys[1], 'bytes', whole(bytes - freed))
  local member = 'conversation:' .. args[1]
  local held = redis.call('HGET', keys[5], member)
  if held then
    local expires = redis.call('ZSCORE', keys[4], member)
    write_member(keys[4], keys[5], member, math.max(0, tonumber(held) - freed), tonumber(expires))
  end
  return count
end)

register_always('omnibus_drop_conversation', function(keys, args) return drop_conversation(keys, args[1]) end)

redis.register_function {
  function_name = 'omnibus_conversation_bytes',
  flags = { 'no-writes' },
  callback = function(keys, _) return items_bytes(keys[1], keys[2]) end,
}
