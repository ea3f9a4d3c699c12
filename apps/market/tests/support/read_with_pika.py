# Reads messages as a plain AMQP client in another language, and tells them as lines of JSON.
import json, sys
from decimal import Decimal
import pika

url, count = sys.argv[1], int(sys.argv[2])
connection = pika.BlockingConnection(pika.URLParameters(url))
channel = connection.channel()
channel.queue_declare("pika.tap", durable=True)
channel.queue_bind("pika.tap", "order.events.exchange", "#")
print("ready", flush=True)
for method, properties, body in channel.consume("pika.tap", inactivity_timeout=30):
    if method is None:
        sys.exit("no message within 30 seconds")
    # Numbers as texts: what stands in the body, and not what a float makes of it.
    parsed = json.loads(body, parse_float=lambda text: "decimal " + text)
    print(json.dumps({
        "exchange": method.exchange, "key": method.routing_key, "body": parsed, "order": list(parsed),
        "content_type": properties.content_type, "delivery_mode": properties.delivery_mode,
        "message_id": properties.message_id, "type": properties.type, "timestamp": properties.timestamp,
    }), flush=True)
    channel.basic_ack(method.delivery_tag)
    count -= 1
    if count == 0:
        break
channel.cancel()
connection.close()
