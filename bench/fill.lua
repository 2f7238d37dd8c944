-- Asks for each file of random.lua's folders once, in order, and says so when FILES answers have come.
local count = tonumber(os.getenv("FILES"))
local folder = os.getenv("FOLDER")
local asked, answered = 0, 0

function request()
   -- What is asked for beyond the last file keeps connections busy until the last answer is there.
   local index = asked % count
   asked = asked + 1
   return wrk.format("GET", string.format("%s/%02x/%d", folder, index % 256, math.floor(index / 256)))
end

function response()
   answered = answered + 1
   if answered == count then
      io.stderr:write("filled\n")
   end
end
