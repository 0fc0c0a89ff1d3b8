package edgekit.template

import kotlin.math.abs
import kotlin.math.max
import kotlin.math.min

/** How pixels are resampled: the filter, and how far it reaches on the smaller grid. Nearest takes one pixel and has no filter. */
internal enum class Interpolation(val reach: Double) { NEAREST(0.0), BILINEAR(1.0), BICUBIC(2.0) }

/** Pixels 0..255, row by row, channels together. */
internal class Pixels(val width: Int, val height: Int, val channels: Int, val values: IntArray)

/**
 * The preprocessing that the model was packaged with: gray or color, resize, crop the center, (pixel * scale - mean) / std, layout.
 *
 * Resizing computes what Pillow computes, to the bit: the filter is widened when an image shrinks, and both passes round to 8 bits.
 */
internal class ImageInput(
    private val width: Int,
    private val height: Int,
    private val channels: Int,
    private val shorter: Int,
    private val resizeWidth: Int,
    private val resizeHeight: Int,
    private val keepAspect: Boolean,
    private val pad: Int,
    private val cropWidth: Int,
    private val cropHeight: Int,
    private val interpolation: Interpolation,
    private val planar: Boolean,
    private val reversed: Boolean,
    private val scale: Double,
    private val mean: DoubleArray,
    private val std: DoubleArray,
    private val whole: ClosedFloatingPointRange<Double>?,
) {
    /** Real values of the input, from colors as `Bitmap.getPixels` gives them (ARGB, not premultiplied). */
    fun values(argb: IntArray, imageWidth: Int, imageHeight: Int): DoubleArray {
        require(argb.size == imageWidth * imageHeight) { "an image of ${imageWidth}x$imageHeight has ${imageWidth * imageHeight} pixels, got ${argb.size}" }
        val picture = crop(resize(split(argb, imageWidth, imageHeight)))
        require(picture.width == width && picture.height == height) { "the model takes ${width}x$height pixels, got ${picture.width}x${picture.height}" }
        return normalize(picture)
    }

    private fun split(argb: IntArray, imageWidth: Int, imageHeight: Int): Pixels {
        val out = IntArray(argb.size * channels)
        for ((index, color) in argb.withIndex()) {
            val red = color shr 16 and 0xFF
            val green = color shr 8 and 0xFF
            val blue = color and 0xFF
            if (channels == 1) {
                out[index] = (red * 19595 + green * 38470 + blue * 7471 + 0x8000) shr 16
            } else {
                out[3 * index] = red
                out[3 * index + 1] = green
                out[3 * index + 2] = blue
            }
        }
        return Pixels(imageWidth, imageHeight, channels, out)
    }

    private fun resize(image: Pixels): Pixels {
        if (shorter > 0) {
            val tall = image.width <= image.height
            val longer = (shorter.toLong() * max(image.width, image.height) / min(image.width, image.height)).toInt()
            return if (tall) resample(image, shorter, longer) else resample(image, longer, shorter)
        }
        if (resizeWidth == 0) {
            return image
        }
        if (!keepAspect) {
            return resample(image, resizeWidth, resizeHeight)
        }
        val factor = min(resizeWidth.toDouble() / image.width, resizeHeight.toDouble() / image.height)
        val innerWidth = Math.rint(image.width * factor).toInt().coerceIn(1, resizeWidth)
        val innerHeight = Math.rint(image.height * factor).toInt().coerceIn(1, resizeHeight)
        return framed(resample(image, innerWidth, innerHeight))
    }

    private fun framed(inner: Pixels): Pixels {
        val out = IntArray(resizeWidth * resizeHeight * channels) { pad }
        val left = (resizeWidth - inner.width) / 2
        val top = (resizeHeight - inner.height) / 2
        for (y in 0 until inner.height) {
            inner.values.copyInto(out, ((top + y) * resizeWidth + left) * channels, y * inner.width * channels, (y + 1) * inner.width * channels)
        }
        return Pixels(resizeWidth, resizeHeight, channels, out)
    }

    private fun crop(image: Pixels): Pixels {
        if (cropWidth == 0) {
            return image
        }
        require(cropWidth <= image.width && cropHeight <= image.height) { "cannot crop ${cropWidth}x$cropHeight from ${image.width}x${image.height} pixels" }
        val left = Math.rint((image.width - cropWidth) / 2.0).toInt()
        val top = Math.rint((image.height - cropHeight) / 2.0).toInt()
        val out = IntArray(cropWidth * cropHeight * channels)
        for (y in 0 until cropHeight) {
            val start = ((top + y) * image.width + left) * channels
            image.values.copyInto(out, y * cropWidth * channels, start, start + cropWidth * channels)
        }
        return Pixels(cropWidth, cropHeight, channels, out)
    }

    private fun normalize(image: Pixels): DoubleArray {
        val area = image.width * image.height
        val out = DoubleArray(area * channels)
        for (index in 0 until area) {
            for (channel in 0 until channels) {
                val pixel = image.values[index * channels + if (reversed) channels - 1 - channel else channel]
                val value = (pixel * scale - mean[channel]) / std[channel]
                out[if (planar) channel * area + index else index * channels + channel] = if (whole == null) value else Math.rint(value).coerceIn(whole)
            }
        }
        return out
    }

    private fun resample(image: Pixels, toWidth: Int, toHeight: Int): Pixels {
        if (interpolation == Interpolation.NEAREST) {
            return nearest(image, toWidth, toHeight)
        }
        val wide = if (toWidth == image.width) image else transposed(filtered(transposed(image), toWidth))
        return if (toHeight == image.height) wide else filtered(wide, toHeight)
    }

    private fun nearest(image: Pixels, toWidth: Int, toHeight: Int): Pixels {
        val columns = centers(image.width, toWidth)
        val rows = centers(image.height, toHeight)
        val out = IntArray(toWidth * toHeight * channels) { index ->
            val pixel = index / channels
            image.values[(rows[pixel / toWidth] * image.width + columns[pixel % toWidth]) * channels + index % channels]
        }
        return Pixels(toWidth, toHeight, channels, out)
    }

    private fun centers(from: Int, to: Int): IntArray {
        val step = from.toDouble() / to
        var position = step * 0.5
        return IntArray(to) { position.toInt().coerceAtMost(from - 1).also { position += step } }
    }

    /** One pass along the rows' axis. Weights have 22 fractional bits, as in Pillow's 8-bit resampling. */
    private fun filtered(image: Pixels, toHeight: Int): Pixels {
        val row = image.width * channels
        val out = IntArray(toHeight * row)
        for (y in 0 until toHeight) {
            val (first, weights) = weights(image.height, toHeight, y)
            for (x in 0 until row) {
                var sum = 1 shl 21
                for ((offset, weight) in weights.withIndex()) {
                    sum += image.values[(first + offset) * row + x] * weight
                }
                out[y * row + x] = (sum shr 22).coerceIn(0, 255)
            }
        }
        return Pixels(image.width, toHeight, channels, out)
    }

    private fun weights(from: Int, to: Int, index: Int): Pair<Int, IntArray> {
        val step = from.toDouble() / to
        val widened = max(step, 1.0)
        val reach = interpolation.reach * widened
        val center = (index + 0.5) * step
        val first = max((center - reach + 0.5).toInt(), 0)
        val last = min((center + reach + 0.5).toInt(), from)
        val weights = DoubleArray(last - first) { kernel((it + first - center + 0.5) * (1.0 / widened)) }
        val total = weights.sum()
        return first to IntArray(weights.size) { fixed(if (total != 0.0) weights[it] / total else weights[it]) }
    }

    private fun fixed(weight: Double): Int = ((if (weight < 0) -0.5 else 0.5) + weight * (1 shl 22)).toInt()

    private fun kernel(position: Double): Double {
        val x = abs(position)
        if (interpolation == Interpolation.BILINEAR) {
            return if (x < 1.0) 1.0 - x else 0.0
        }
        return when {
            x < 1.0 -> (1.5 * x - 2.5) * x * x + 1.0
            x < 2.0 -> (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5
            else -> 0.0
        }
    }

    private fun transposed(image: Pixels): Pixels {
        val out = IntArray(image.values.size)
        for (y in 0 until image.height) {
            for (x in 0 until image.width) {
                image.values.copyInto(out, (x * image.height + y) * channels, (y * image.width + x) * channels, (y * image.width + x + 1) * channels)
            }
        }
        return Pixels(image.height, image.width, channels, out)
    }
}
